"""From errors to one clear line and an exit code."""

import sys
import traceback
from collections.abc import Callable

from holdfast.cli.exit import Exit
from holdfast.cli.loading import UserCodeError
from holdfast.engine.run import RunChanged
from holdfast.records.errors import (
    EndpointDown,
    HoldfastError,
    JournalCorrupt,
    JournalError,
    JournalFull,
    JournalNewer,
    LeaseLost,
    NotAJournal,
    PolicyRefused,
    RunHeld,
    UsageError,
)
from holdfast.records.failure import redact

_CODES: tuple[tuple[type[HoldfastError], Exit], ...] = (
    (RunChanged, Exit.CHANGED),
    (RunHeld, Exit.HELD),
    (NotAJournal, Exit.USAGE),
    (JournalNewer, Exit.USAGE),
    (JournalCorrupt, Exit.CORRUPT),
    (JournalFull, Exit.STOPPED),
    (LeaseLost, Exit.STOPPED),
    (JournalError, Exit.USAGE),
    (EndpointDown, Exit.STOPPED),
    (PolicyRefused, Exit.USAGE),
    (UsageError, Exit.USAGE),
)


def guarded(command: Callable[[], int]) -> int:
    """Runs a command; what a user can meet becomes a line, what is our bug a traceback."""
    try:
        return command()
    except UserCodeError as error:
        print(error.traceback, file=sys.stderr, end="")
        return say(str(error), Exit.USAGE)
    except HoldfastError as error:
        return say(str(error), code_of(error))
    except BrokenPipeError:
        # The reader of our output went away, as `head` does.
        sys.stderr.close()
        return Exit.OK
    except Exception:
        print(redact(traceback.format_exc()), file=sys.stderr, end="")
        return say("this is a bug in Holdfast; nothing that was recorded is lost", Exit.STOPPED)


def code_of(error: HoldfastError) -> Exit:
    return next((code for kind, code in _CODES if isinstance(error, kind)), Exit.STOPPED)


def say(message: str, code: Exit) -> Exit:
    print(f"holdfast: {redact(message)}", file=sys.stderr)
    return code
