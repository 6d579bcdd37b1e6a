"""Failure: what went wrong, classified once, where it is caught.

The table from cause to gradient lives here and nowhere else (see `TREATMENT`).
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
"""Errors of one group whose tracebacks are kept."""
_AND_THEN = "\nAt the same time:\n\n"
_PACKAGE = f"{Path(__file__).parent.parent}{os.sep}"
_PYTHON = f"{sysconfig.get_path('stdlib')}{os.sep}"
# What changes from one failure to the next like it: counts, ids, and where an object lies.
_NUMBER = re.compile(r"\b0x[0-9a-fA-F]+\b|\d+")
_MORE_ERRORS = re.compile(r" \(and (another error|\d+ other errors) at the same time\)$")


class Treatment(Struct, frozen=True):
    """What happens to a trajectory that failed for a cause."""

    attempts: int | None
    """How often a new attempt may try again; None: as often as the run allows."""
    refill: bool
    """Whether a spent trajectory is rolled out anew."""
    outcome: str
    in_loss: str
    in_baseline: bool


TREATMENT: dict[Cause, Treatment] = {
    Cause.INFRASTRUCTURE: Treatment(None, True, "FAILED", "no", False),
    Cause.ENVIRONMENT: Treatment(None, True, "FAILED", "no", False),
    # Once more, to distinguish a flake from a bug; a bug would only fail a refill too.
    Cause.CODE: Treatment(1, False, "FAILED", "no", False),
    Cause.POLICY: Treatment(0, False, "TRUNCATED", "by the truncation policy", True),
}


_WORST_FIRST = (Cause.CODE, Cause.ENVIRONMENT, Cause.INFRASTRUCTURE, Cause.POLICY)
"""The order in which an exception group takes the cause of its worst member.

A bug beside an accident is a bug, because no retry repairs it. An accident beside a limit is an
accident, and no outcome.
"""


class Failure(Struct, frozen=True, omit_defaults=True):
    """One failure, as it is recorded and shown."""

    cause: Cause
    retryable: bool
    type: str
    message: str
    traceback: str
    step: str = ""
    """The path of the step that was running, "" when none was."""
    attempt: int = 0
    phase: str = "rollout"

    @property
    def line(self) -> str:
        """Its type and the first line of its message; of a long one, the two ends."""
        return self._headline(self._first_line)

    @property
    def text(self) -> str:
        """Its type and its whole message."""
        return f"{self.type}: {self.message}" if self.message else self.type

    @property
    def root(self) -> str:
        """Failures with the same root are one line of a report, alone or not."""
        return self._headline(_NUMBER.sub("#", _MORE_ERRORS.sub("", self._first_line)))

    @property
    def _first_line(self) -> str:
        return self.message.splitlines()[0] if self.message else ""

    def _headline(self, text: str) -> str:
        return f"{self.type}: {shortened(text)}" if text else self.type


def shortened(line: str, limit: int = MAX_LINE) -> str:
    """The line, or its two ends: what fits into a headline, unless `limit` says otherwise."""
    if len(line) <= limit:
        return line
    end = limit // 4
    return f"{line[: limit - end]} … {line[-end:]}"


def classify(error: BaseException) -> tuple[Cause, bool]:
    """Cause and retryability, from types, and from the status of an HTTP response; of a group,
    those of its worst member."""
    return guarded(lambda: _classify(root_of(error)), lambda worse: (Cause.CODE, True))


def _classify(error: BaseException) -> tuple[Cause, bool]:
    if isinstance(error, HoldfastError):
        return error.cause, error.retryable
    if broke_outside(error):
        return Cause.INFRASTRUCTURE, True
    # A rollout that cancels itself is a bug, too; a cancelled run never gets here.
    return Cause.CODE, True


def failure_of(
    error: BaseException, *, step: str = "", attempt: int = 0, phase: str = "rollout"
) -> Failure:
    """The record of `error`: of its root, not of the group or cancellation that carried it here.
    The other members of the group are counted, and their tracebacks follow."""
    root, *others = (harmless(member, error) for member in _worst_first(error))
    cause, retryable = classify(root)
    # Redacted before it is shortened: half a secret is still one.
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
    """The worst error inside exception groups, of equals the first; neither a cancellation nor
    something harmless beside it hides it (I4). What cannot be looked at is replaced by something
    that can."""
    return _worst_first(error)[0]


def as_exception(error: BaseException) -> Exception:
    """The root of `error`, as something that can be raised and recorded without harm."""
    return harmless(root_of(error), error)


def _worst_first(error: BaseException) -> list[BaseException]:
    members = members_of(error)
    return members if len(members) == 1 else sorted(members, key=_rank)


def _rank(error: BaseException) -> int:
    return guarded(lambda: _WORST_FIRST.index(_classify(error)[0]), lambda worse: 0)


def _traceback_text(error: BaseException, carried: TracebackType | None) -> str:
    """`carried`: the frames of the group that it came in, for an error that was never raised."""
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
    """Counted on the first line, which is what headlines show (`_MORE_ERRORS` finds it there)."""
    if more < 1:
        return message
    first, end, rest = message.partition("\n")
    count = "and another error" if more == 1 else f"and {more} other errors"
    return f"{first} ({count} at the same time){end}{rest}"


def _begin_with_user_code(formatted: tracebacks.TracebackException) -> None:
    """How Holdfast came to call the user's code explains nothing; what it did after that may."""
    frames = list(formatted.stack or ())
    first = next((at for at, frame in enumerate(frames) if is_user_code(frame.filename)), 0)
    if first:
        formatted.stack = tracebacks.StackSummary.from_list(frames[first:])
    for cause in (formatted.__cause__, formatted.__context__):
        if cause is not None:
            _begin_with_user_code(cause)


def for_caller(error: HoldfastError) -> HoldfastError:
    """The error as the public API raises it: without our frames, and without what caused it, since
    its message says that. Where user code had a part in it, all of its traceback stays."""
    if _chain_has_user_code(error):
        return error
    error.__cause__ = None  # And no context is shown.
    return error.with_traceback(None)


def _chain_has_user_code(error: BaseException | None) -> bool:
    if error is None:
        return False
    frames = tracebacks.walk_tb(error.__traceback__)
    return any(
        is_user_code(frame.f_code.co_filename) for frame, _ in frames
    ) or _chain_has_user_code(error.__cause__ or error.__context__)


def is_user_code(file: str) -> bool:
    """Neither of Holdfast nor of Python, nor of a library, which Holdfast may have called."""
    return not file.startswith((_PACKAGE, _PYTHON, "<frozen ")) and not _is_in_library(file)


def _is_in_library(file: str) -> bool:
    """Holdfast itself may be installed among them, and is none."""
    is_installed = not {"site-packages", "dist-packages"}.isdisjoint(Path(file).parts)
    return is_installed and not file.startswith(_PACKAGE)


def fold_traceback(text: str) -> str:
    """A recorded traceback for people: frames of Holdfast, and of asyncio between them, become one
    line, even if no others are left."""
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
        if after:  # Another traceback begins, or the error itself is said.
            result += [_folded(folded), after]
            folded = 0
    return "".join(result)


_FRAME = re.compile(r'^(  File "[^\n]*\n)', re.MULTILINE)
_INSTALLED = re.compile(r"[/\\](site|dist)-packages[/\\]holdfast[/\\]")
"""On the machine that recorded it."""
_ASYNCIO = re.compile(r'File "[^"]*[/\\](asyncio|concurrent|contextlib|threading)[^"]*", line ')


def _is_ours(head: str) -> bool:
    file = head.removeprefix('  File "').partition('"')[0]
    return file.startswith(_PACKAGE) or bool(_INSTALLED.search(file))


def _source_of(rest: str) -> tuple[str, str]:
    """The lines of a frame, which are indented more than it is, and what follows them."""
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
    """A caller's mistake is in the caller's lines, an agent's in its own words, an engine's in what
    it answered."""
    files = {frame.filename for frame in formatted.stack}
    kept = {file for file in files if is_user_code(file) or _is_in_library(file)}
    user_frames = [frame for frame in formatted.stack if frame.filename in kept]
    # Without a stack, nothing announces one.
    formatted.stack = tracebacks.StackSummary.from_list(user_frames) if user_frames else None  # type: ignore[assignment]
    for cause in (formatted.__cause__, formatted.__context__):
        if cause is not None:
            _leave_out_our_frames(cause)


def _shorten(text: str, limit: int) -> str:
    """Keeps the head and the tail: a traceback's root is at its end."""
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
"""For each library, by its top package: the base class of its request errors."""
_FILES = (
    FileExistsError,
    FileNotFoundError,
    IsADirectoryError,
    NotADirectoryError,
    PermissionError,
)
"""`OSError`s that nearly always are a wrong path in the code, the same at every try."""
_MISTAKES = frozenset({"InvalidURL", "LocalProtocolError", "UnsupportedProtocol"})
"""What clients raise before they send anything: the code asked for something impossible."""
_WRONG_REQUESTS = frozenset({400, 405, 406, 411, 413, 414, 415, 422})
"""The statuses of HTTP that blame the request itself. 401, 403 and 404 may be of the set-up."""


def broke_outside(error: BaseException) -> bool:
    """Whether an error that is none of Holdfast's is one of infrastructure: something outside
    broke, not this code.

    A connection that was lost, a time that ran out, a server that answered 503. Libraries are known
    by the names of their error classes, since none of them has to be installed; their subclasses,
    and those of other libraries that derive from them, count as well.
    """
    if isinstance(error, _FILES):
        return False
    if _is(error, "ssl", "SSLError"):  # A `ValueError`, too, where it is about a certificate.
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
    """The status that a server answered with, where clients keep it; None where none did."""
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
