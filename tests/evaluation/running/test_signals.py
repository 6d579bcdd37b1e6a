"""What is said of an evaluation that a signal stopped."""

import signal

from holdfast.evaluation.running.signals import Interrupted


def test_what_goes_on_is_no_command_that_begins_anew() -> None:
    assert str(Interrupted(signal.SIGINT)).endswith("is kept, the same command goes on")
    anew = str(Interrupted(signal.SIGINT, is_new=True))
    assert anew.endswith("is kept, the same command without --holdfast-new goes on")
