"""How many workers there are for how much that is open."""

import pytest

from holdfast.cluster.fleet import FleetSize


@pytest.mark.parametrize(
    ("most", "each", "open_", "room", "wanted"),
    [
        (40, 64, 10_000, 8, 40),  # As many as were asked for: Ray may bring more nodes.
        (40, 64, 3, 8, 3),  # No more than there is to do.
        (40, 64, 0, 8, 1),
        (None, 64, 10_000, 8, 8),  # As many as have room.
        (None, 64, 65, 8, 2),
        (None, 64, 1, 8, 1),
    ],
)
def test_the_fleet_grows_with_the_queue_and_not_beyond(most, each, open_, room, wanted):
    assert FleetSize(most, each).wanted(open_, room=room) == wanted
