"""Classifies each failure once, where it is caught.

Only this module has the table from cause to treatment (see `TREATMENT`).
"""

import os
import re
import sysconfig
import traceback as tracebacks
from pathlib import Path
from types import TracebackType

from msgspec import Struct

from holdfast.records.encoding.redaction import redact
from holdfast.records.errors import Cause, HoldfastError
from holdfast.records.foreign import (
    guarded,
    harmless,
    members_of,
    message_of,
    name_of,
    plain_text_of,
    traceback_of,
)

MAX_MESSAGE = 4_000
MAX_TRACEBACK = 16_000
MAX_READ = 1_000_000
MAX_LINE = 300
MAX_MEMBERS = 8
"""The number of errors in one exception group whose tracebacks are kept."""
_AND_THEN = "\nAt the same time:\n\n"
_PACKAGE = f"{Path(__file__).parent.parent}{os.sep}"
_PYTHON = f"{sysconfig.get_path('stdlib')}{os.sep}"
# The parts in which similar failures differ: counts, ids and addresses of objects.
_NUMBER = re.compile(r"\b0x[0-9a-fA-F]+\b|\d+")
_MORE_ERRORS = re.compile(r" \(and (another error|\d+ other errors) at the same time\)$")


class Treatment(Struct, frozen=True):
    """The treatment of a trajectory that failed for a cause."""

    attempts: int | None
    """The number of new attempts after the first; None for as many as the run allows."""
    refill: bool
    """Whether a trajectory without attempts left is rolled out anew, if its group has a refill
    left."""
    outcome: str
    in_loss: str
    in_baseline: bool


TREATMENT: dict[Cause, Treatment] = {
    Cause.INFRASTRUCTURE: Treatment(None, True, "FAILED", "no", False),
    Cause.ENVIRONMENT: Treatment(None, True, "FAILED", "no", False),
    # One more attempt distinguishes a flake from a bug. A refill would not help against a bug.
    Cause.CODE: Treatment(1, False, "FAILED", "no", False),
    Cause.POLICY: Treatment(0, False, "TRUNCATED", "by the truncation policy", True),
}


_WORST_FIRST = (Cause.CODE, Cause.ENVIRONMENT, Cause.INFRASTRUCTURE, Cause.POLICY)
"""The order of causes that decides which member of an exception group is the worst.

A bug beside an accident is treated as a bug, because no retry repairs it. An accident beside a
limit is treated as an accident, so the trajectory is not an outcome.
"""


class Failure(Struct, frozen=True, omit_defaults=True):
    """One failure in the form that is recorded and shown."""

    cause: Cause
    retryable: bool
    type: str
    message: str
    traceback: str
    step: str = ""
    """The path of the step that was running; "" if no step was running."""
    attempt: int = 0
    phase: str = "rollout"

    @property
    def line(self) -> str:
        """Returns the type of the failure and the first line of its message. A long line is
        shortened to its two ends."""
        return self._headline(self._first_line)

    @property
    def text(self) -> str:
        """Returns the type of the failure and its whole message."""
        return f"{self.type}: {self.message}" if self.message else self.type

    @property
    def root(self) -> str:
        """Returns the key by which reports group failures. The key contains no numbers, and no
        count of the other errors in an exception group."""
        return self._headline(_NUMBER.sub("#", _MORE_ERRORS.sub("", self._first_line)))

    @property
    def _first_line(self) -> str:
        return self.message.splitlines()[0] if self.message else ""

    def _headline(self, text: str) -> str:
        return f"{self.type}: {shortened(text)}" if text else self.type


def shortened(line: str, limit: int = MAX_LINE) -> str:
    """Returns the line, or its two ends if it is longer than `limit`."""
    if len(line) <= limit:
        return line
    end = limit // 4
    return f"{line[: limit - end]} … {line[-end:]}"


def classify(error: BaseException) -> tuple[Cause, bool]:
    """Returns the cause and whether a retry can help. They follow from the error's type and the
    status of an HTTP response. For an exception group, its worst member decides."""
    return guarded(lambda: _classify(root_of(error)), lambda worse: (Cause.CODE, True))


def _classify(error: BaseException) -> tuple[Cause, bool]:
    if isinstance(error, HoldfastError):
        return Cause(error.cause), bool(error.retryable)
    if broke_outside(error):
        return Cause.INFRASTRUCTURE, True
    # A rollout that cancels itself has a bug. A cancelled run never reaches this code.
    return Cause.CODE, True


def failure_of(
    error: BaseException, *, step: str = "", attempt: int = 0, phase: str = "rollout"
) -> Failure:
    """Returns the record of the worst error in `error`, without the groups or cancellations around
    it. The message counts the other members of the group, and their tracebacks follow."""
    root, *others = (harmless(member, error) for member in _worst_first(error))
    cause, retryable = classify(root)
    # Redacted before it is shortened, because half a secret is still a secret.
    message = _shorten(redact(_shorten(message_of(root), MAX_READ)), MAX_MESSAGE)
    shown = (root, *others[: MAX_MEMBERS - 1])
    texts = [_traceback_text(member, traceback_of(error)) for member in shown]
    return Failure(
        cause=cause,
        retryable=retryable,
        type=name_of(root),
        message=_with_count(message, len(others)),
        traceback=_shorten(redact(_shorten(_AND_THEN.join(texts), MAX_READ)), MAX_TRACEBACK),
        step=step,
        attempt=attempt,
        phase=phase,
    )


def root_of(error: BaseException) -> BaseException:
    """Returns the worst error inside exception groups; if several are equally bad, the first of
    them. Cancellations and harmless errors in a group do not hide the worst error (I4). An
    unreadable error is replaced by a readable one."""
    return _worst_first(error)[0]


def as_exception(error: BaseException) -> Exception:
    """Returns the root of `error` as an exception that can be raised and recorded without harm."""
    return harmless(root_of(error), error)


def _worst_first(error: BaseException) -> list[BaseException]:
    members = members_of(error)
    return members if len(members) == 1 else sorted(members, key=_rank)


def _rank(error: BaseException) -> int:
    return guarded(lambda: _WORST_FIRST.index(_classify(error)[0]), lambda worse: 0)


def _traceback_text(error: BaseException, carried: TracebackType | None) -> str:
    """Returns the traceback as text. For an error that was never raised, `carried` has the frames
    of its group."""
    return guarded(lambda: _without_our_frames(error, carried), lambda _: plain_text_of(error))


def _without_our_frames(error: BaseException, carried: TracebackType | None) -> str:
    frames = traceback_of(error) or carried
    formatted = tracebacks.TracebackException(type(error), error, frames)
    if isinstance(error, HoldfastError) and not error.arose_here and not _has_user_code(formatted):
        _leave_out_our_frames(formatted)
    else:
        _begin_with_user_code(formatted)
    return "".join(formatted.format())


def _with_count(message: str, more: int) -> str:
    """Adds the number of other errors to the first line of the message, because headlines show only
    this line. `_MORE_ERRORS` is the pattern that removes the number again."""
    if more < 1:
        return message
    first, end, rest = message.partition("\n")
    count = "and another error" if more == 1 else f"and {more} other errors"
    return f"{first} ({count} at the same time){end}{rest}"


def _begin_with_user_code(formatted: tracebacks.TracebackException) -> None:
    """Removes the frames before the first user code, because they do not explain the error. Later
    frames of Holdfast stay."""
    frames = list(formatted.stack or ())
    first = next((at for at, frame in enumerate(frames) if is_user_code(frame.filename)), 0)
    if first:
        formatted.stack = tracebacks.StackSummary.from_list(frames[first:])
    for cause in (formatted.__cause__, formatted.__context__):
        if cause is not None:
            _begin_with_user_code(cause)


def for_caller(error: HoldfastError) -> HoldfastError:
    """Returns the error as the public API raises it. The error has neither its cause nor our
    frames, because the message says enough. If user code took part in the error, the whole
    traceback stays."""
    if _chain_has_user_code(error):
        return error
    error.__cause__ = None  # This also hides the context.
    return error.with_traceback(None)


def _chain_has_user_code(error: BaseException | None) -> bool:
    if error is None:
        return False
    frames = tracebacks.walk_tb(error.__traceback__)
    return any(
        is_user_code(frame.f_code.co_filename) for frame, _ in frames
    ) or _chain_has_user_code(error.__cause__ or error.__context__)


def is_user_code(file: str) -> bool:
    """Returns whether the file is user code rather than part of Holdfast, Python or a library."""
    return not file.startswith((_PACKAGE, _PYTHON, "<frozen ")) and not _is_in_library(file)


def _is_in_library(file: str) -> bool:
    """Returns whether the file belongs to an installed library other than Holdfast."""
    is_installed = not {"site-packages", "dist-packages"}.isdisjoint(Path(file).parts)
    return is_installed and not file.startswith(_PACKAGE)


def fold_traceback(text: str, message: str = "") -> str:
    """Returns a recorded traceback in a shorter form, for people to read. Frames of Holdfast, and
    of asyncio between them, become one line, even if no other frames are left. Returns "" if the
    traceback has no frames and only repeats `message`, the line above it."""
    line = text.rstrip()
    if message and "\n" not in line and line.endswith(message):
        return ""
    parts = _FRAME.split(text)
    frames = [(parts[at], parts[at + 1]) for at in range(1, len(parts), 2)]
    is_ours = [_is_ours(head) for head, _ in frames]
    if not any(is_ours):
        return text
    result, folded = [parts[0]], 0
    for at, (head, rest) in enumerate(frames):
        source, after = _source_of(rest)
        between = bool(_ASYNCIO.search(head)) and at > 0 and is_ours[at - 1]
        if is_ours[at] or between:
            is_ours[at] = True
            folded += 1
        else:
            result += [_folded(folded), head, source]
            folded = 0
        if after:  # Another traceback begins here, or the error itself follows.
            result += [_folded(folded), after]
            folded = 0
    return "".join(result)


_FRAME = re.compile(r'^(  File "[^\n]*\n)', re.MULTILINE)
_INSTALLED = re.compile(r"[/\\](site|dist)-packages[/\\]holdfast[/\\]")
"""Matches Holdfast's files on the machine that recorded the traceback."""
_ASYNCIO = re.compile(r'File "[^"]*[/\\](asyncio|concurrent|contextlib|threading)[^"]*", line ')


def _is_ours(head: str) -> bool:
    file = head.removeprefix('  File "').partition('"')[0]
    return file.startswith(_PACKAGE) or bool(_INSTALLED.search(file))


def _source_of(rest: str) -> tuple[str, str]:
    """Splits the text after a frame's header into the frame's own lines, which are indented
    further, and the rest."""
    lines = rest.splitlines(keepends=True)
    end = next((at for at, line in enumerate(lines) if not line.startswith("    ")), len(lines))
    return "".join(lines[:end]), "".join(lines[end:])


def _folded(frames: int) -> str:
    if not frames:
        return ""
    return f"  … {frames} {'frame' if frames == 1 else 'frames'} of Holdfast (--full-tracebacks)\n"


def _has_user_code(formatted: tracebacks.TracebackException) -> bool:
    return any(is_user_code(frame.filename) for frame in formatted.stack or ())


def _leave_out_our_frames(formatted: tracebacks.TracebackException) -> None:
    """Removes the frames of Holdfast. The caller's lines, or the error's message, explain such an
    error."""
    files = {frame.filename for frame in formatted.stack}
    kept = {file for file in files if is_user_code(file) or _is_in_library(file)}
    user_frames = [frame for frame in formatted.stack if frame.filename in kept]
    # Without frames, Python prints no header for them.
    formatted.stack = tracebacks.StackSummary.from_list(user_frames) if user_frames else None  # type: ignore[assignment]
    for cause in (formatted.__cause__, formatted.__context__):
        if cause is not None:
            _leave_out_our_frames(cause)


def _shorten(text: str, limit: int) -> str:
    """Shortens the text to its head and its tail, because the root of a traceback is at its end."""
    # Lone surrogates cannot be encoded, and an error message must never break the journal.
    text = text.encode("utf-8", "backslashreplace").decode()
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n… {len(text) - limit} characters left out …\n{text[-half:]}"


_CLIENTS = frozenset(
    {
        ("aiohttp", "ClientError"),
        ("anthropic", "APIError"),
        ("botocore", "BotoCoreError"),
        ("botocore", "ClientError"),
        ("google", "APIError"),
        ("google", "GoogleAPIError"),
        ("grpc", "RpcError"),
        ("http", "HTTPException"),
        ("httpcore", "NetworkError"),
        ("httpcore", "ProtocolError"),
        ("httpcore", "TimeoutException"),
        ("httpx", "HTTPError"),
        ("openai", "APIError"),
        ("pycurl", "error"),
        ("requests", "RequestException"),
        ("urllib3", "HTTPError"),
        ("websockets", "WebSocketException"),
    }
)
"""Base classes of request errors, each with the top package of its library."""
_FILES = (
    FileExistsError,
    FileNotFoundError,
    IsADirectoryError,
    NotADirectoryError,
    PermissionError,
)
"""`OSError`s that nearly always mean a wrong path in the code, so that another try does not
help."""
_MISTAKES = frozenset({"InvalidURL", "LocalProtocolError", "UnsupportedProtocol"})
"""Errors that clients raise before they send anything, because the code asked for something
impossible."""
_WRONG_REQUESTS = frozenset({400, 405, 406, 411, 413, 414, 415, 422})
"""HTTP statuses that blame the request itself. The statuses 401, 403 and 404 are not here, because
the setup may cause them."""


def broke_outside(error: BaseException) -> bool:
    """Returns whether an error from outside Holdfast is a failure of infrastructure rather than of
    the code, such as a lost connection, a timeout or the answer 503.

    Libraries need not be installed, so their error classes are known by name. Subclasses count too,
    even in other libraries.
    """
    if isinstance(error, _FILES):
        return False
    # Certificate errors are also `ValueError`s, so this check comes first.
    if _is(error, "ssl", "SSLError"):
        return True
    if not isinstance(error, OSError) and not _is_of_a_client(error):
        return False
    names = {kind.__name__ for kind in type(error).__mro__}
    if isinstance(error, ValueError | TypeError) or names & _MISTAKES:
        return False
    return _status(error) not in _WRONG_REQUESTS


def _is_of_a_client(error: BaseException) -> bool:
    return any((_package(kind), kind.__name__) in _CLIENTS for kind in type(error).__mro__)


def _is(error: BaseException, package: str, name: str) -> bool:
    return any(_package(kind) == package and kind.__name__ == name for kind in type(error).__mro__)


def _package(kind: type) -> str:
    return kind.__module__.partition(".")[0]


def _status(error: BaseException) -> object:
    """Returns the HTTP status of the server's answer, if the error has one; None otherwise."""
    response = getattr(error, "response", None)
    for holder, name in (
        (error, "status_code"),
        (error, "status"),
        (error, "code"),
        (response, "status_code"),
        (response, "status"),
    ):
        status = getattr(holder, name, None)
        if isinstance(status, int):
            return status
    return None
