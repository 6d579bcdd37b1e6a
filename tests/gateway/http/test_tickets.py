"""Answers through another worker count as delivered when that one says so, and as lost with it."""

import pytest

from holdfast.gateway.http.tickets import MAX_TICKETS, RelayReport, Tickets


class Subscription:
    def __init__(self) -> None:
        self.left: list[bool | None] = []
        self.delivered = False

    def leave(self, *, delivered: bool | None) -> None:
        self.left.append(delivered)
        self.delivered = bool(delivered)

    def mark_delivered(self) -> None:
        self.delivered = True


@pytest.mark.parametrize("delivered", [True, False])
@pytest.mark.parametrize("is_early", [True, False])
def test_the_report_decides_whichever_comes_first(delivered: bool, is_early: bool) -> None:
    tickets, subscription = Tickets(), Subscription()
    if is_early:
        tickets.report(RelayReport("one", delivered))
    tickets.hold("one", subscription, connection=object())
    if not is_early:
        assert not subscription.left, "the client counts as waiting"
        tickets.report(RelayReport("one", delivered))
    assert subscription.left == [delivered]


def test_a_lost_connection_takes_its_own_answers_with_it() -> None:
    tickets, mine, other = Tickets(), Subscription(), Subscription()
    lost, alive = object(), object()
    tickets.hold("one", mine, lost)
    tickets.hold("two", other, alive)
    tickets.disconnect(lost)
    assert (mine.left, other.left) == ([None], [])


def test_a_worker_that_only_closed_its_connection_still_reports() -> None:
    tickets, subscription, connection = Tickets(), Subscription(), object()
    tickets.hold("one", subscription, connection)
    tickets.disconnect(connection)
    tickets.report(RelayReport("one", delivered=True))
    assert subscription.left == [None]
    assert subscription.delivered


def test_no_more_are_kept_than_there_is_room_for() -> None:
    tickets, first = Tickets(), Subscription()
    tickets.hold("first", first, None)
    for number in range(MAX_TICKETS):
        tickets.hold(f"{number}", Subscription(), None)
        tickets.report(RelayReport(f"early {number}", delivered=True))
    assert first.left == [True]
