"""What crash tests share."""

import pytest

from support.crash.killable_run import undisturbed


@pytest.fixture(scope="module")
def baseline(killable):
    """An undisturbed run of the file's `killable`."""
    return undisturbed(killable)
