"""The calls of one attempt that were rejected, or could not be answered.

An agent may hide a rejection and end as if its task was done. So each rejection is durable before
it is sent, and the record decides the trajectory's outcome. A rejected call counts as repaired only
if the same conversation, or one that continues it, is answered later.
"""

import contextlib
import hashlib
import logging
import re
import traceback
from enum import StrEnum

import msgspec
from msgspec import structs

from holdfast import crashpoint
from holdfast.gateway.calls.attempt_status import attempt_number
from holdfast.gateway.protocol.messages import (
    AgentFailed,
    Answer,
    RefusedCall,
    RequestRejected,
    UnansweredCall,
)
from holdfast.off_loop import off_loop
from holdfast.records.encoding.redaction import redact
from holdfast.records.errors import (
    BadRequest,
    ContextOverflow,
    HoldfastError,
    RunStopped,
    Truncated,
)
from holdfast.records.step import CallRefused
from holdfast.rollout.replay.session import Session

NO_ANSWER = "the engine gave no answer that could be used; the log of the run says why"
"""What an agent is told instead of the reason, because the reason names the engine's address, which
no agent should know."""
MAX_OPEN = 64
"""The most open rejections that are recorded. More would not change the outcome."""
_OWN_FAULTS = (408, 500, 502, 503, 504)
"""Statuses of failures that the agent did not cause."""
_START = b"\0" * 16
_CONTENT = (
    *("arguments", "call_id", "content", "function", "input", "name", "output", "role", "text"),
    *("tool_call_id", "tool_calls", "tool_use_id"),
)
"""The members that are the content of a message. A client may leave out any other member when it
sends the message again."""
_REASONING = ("reasoning", "thinking", "redacted_thinking")
_REFERENCES = ("previous_response_id", "conversation")
"""Fields that refer to earlier messages. With such a field, the conversation is not known here."""
_AT_MESSAGE = re.compile(r"(?:messages|input)[.\[](\d+)")
"""Finds the message that a rejection's parameter names, such as `messages.3` or `input[3]`."""
_log = logging.getLogger("holdfast.gateway")


class OnRefused(StrEnum):
    """The outcome of a trajectory in which a call was rejected and not repeated."""

    FAIL = "fail"
    """The trajectory fails, because an end without the answer is not an outcome of the policy."""
    ACCEPT = "accept"
    """The trajectory ends as the agent reports. The rejected calls are in the record."""


class RejectedCalls:
    """The rejected calls of one attempt. If its agent outlived a gateway, they include the calls
    that the earlier gateway rejected."""

    def __init__(self, session: Session):
        self._session = session

    @property
    def open(self) -> list[CallRefused]:
        """Returns the calls that were not repaired, in order."""
        attempt = attempt_number(self._session)
        calls = self._session.history.refusals.values()
        return [call for call in calls if call.attempt == attempt and not call.answer]

    async def add(self, rejection: RequestRejected, *, wire: str, body: bytes) -> None:
        """Makes a rejection durable, before the caller sends it. `body` is the body of the rejected
        call."""
        session = self._session
        # A corrected message differs from the rejected one, so the corrected request continues the
        # messages before it.
        at = _AT_MESSAGE.match(rejection.param or "")
        before = int(at[1]) if at else None
        known = await off_loop(lambda: _conversation(body, before=before), size=len(body))
        conversation = (known or [_START])[-1]
        key = _digest(conversation, f"{wire} {rejection.status} {rejection.message}".encode())
        attempt = attempt_number(self._session)
        recorded = session.history.refusals.get((attempt, key))
        if (recorded is not None and not recorded.answer) or len(self.open) >= MAX_OPEN:
            return
        # If the attempt has ended in the meantime, its outcome does not depend on this record.
        with contextlib.suppress(RunStopped):
            await session.log.append(
                CallRefused(
                    key,
                    attempt,
                    wire,
                    conversation,
                    rejection.status,
                    rejection.code,
                    redact(rejection.message),
                    session.clock.now(),
                )
            )
            crashpoint.reach("gateway.refused")

    async def resolve(self, answer: Answer, *, body: bytes) -> None:
        """Marks rejected calls as repaired if a request repeats or continues them. `body` is the
        body of this request, and `answer` is its answer. Call it before the answer is sent."""
        if not self._session.history.refusals or not (rejected := self.open):
            return
        digests = await off_loop(lambda: _conversation(body), size=len(body))
        known = {_START, *digests}
        resolved = [
            structs.replace(call, answer=answer.id)
            for call in rejected
            if call.conversation in known
        ]
        if resolved:
            await self._session.log.append(*resolved)

    def failure(self) -> AgentFailed | None:
        """Returns the failure of an agent that ended although a call was not answered, or None if
        every call was answered."""
        if not (calls := self.open):
            return None
        first = next((call for call in calls if call.status not in _OWN_FAULTS), calls[0])
        more = f" (and {len(calls) - 1} more like it)" if len(calls) > 1 else ""
        detail = f"{first.wire} was answered with {first.status}: {first.message}{more}"
        if first.status in _OWN_FAULTS:
            return UnansweredCall(f"a call of the agent was not answered: {detail}")
        return RefusedCall(f"a call of the agent was refused, and it did not ask again: {detail}")


def attempt_over(why: BaseException | None = None) -> RequestRejected:
    message = "the attempt that this key belongs to is over"
    # The agent gets only reasons that it caused itself.
    message += f": {why}" if isinstance(why, AgentFailed) else ""
    return RequestRejected(409, message, code="attempt_over")


def as_rejection(error: Exception, trajectory: str) -> RequestRejected:
    """Returns the error that the agent gets instead of an answer."""
    match error:
        case RequestRejected():
            return error
        case ContextOverflow():
            return RequestRejected(400, str(error), code="context_length_exceeded")
        case Truncated():
            return RequestRejected(400, str(error), code=error.reason)
        case BadRequest():
            return RequestRejected(400, redact(error.reason))
        case RunStopped():
            return RequestRejected(503, str(error), code="stopping")
        case HoldfastError():
            _log.warning("a call could not be answered: %s", redact(str(error)))
            return RequestRejected(503, NO_ANSWER, code="engine")
    return internal_error(error, trajectory)


def internal_error(error: Exception, trajectory: str) -> RequestRejected:
    """Returns the response to an internal error of the gateway. Logs the error's type and place,
    without its message, which may contain the client's text."""
    where = "".join(traceback.format_tb(error.__traceback__))
    kind = type(error).__name__
    _log.error("a request of %r failed: %s\n%s", trajectory or "nobody", kind, where)
    return gateway_failed()


def gateway_failed() -> RequestRejected:
    return RequestRejected(500, "the gateway failed; its log says where", code="internal_error")


def _conversation(body: bytes, *, before: int | None = None) -> list[bytes]:
    """Returns the digest after each message of a request, parsed as far as possible. With `before`,
    covers only the messages before that index. Returns an empty list if the body cannot be parsed
    or refers to earlier messages. Then every conversation counts as its continuation."""
    try:
        sent = msgspec.json.decode(body)
        return _digests(sent, before) if isinstance(sent, dict) else []
    except (ValueError, RecursionError):
        return []


def _digests(sent: dict[str, object], before: int | None) -> list[bytes]:
    messages = _messages(sent, before)
    if any(sent.get(name) for name in _REFERENCES) or any(map(_is_reference, messages)):
        return []
    digests, last = [], _START
    for message in messages:
        if not _is_reasoning(message):
            last = _digest(last, msgspec.json.encode(_content(message)))
            digests.append(last)
    return digests


def _messages(sent: dict[str, object], before: int | None) -> list[object]:
    """Returns all messages of a request, in the same form for every wire."""
    messages, text, prompt = (sent.get(name) for name in ("messages", "input", "prompt"))
    if not messages:
        messages = [{"role": "user", "content": text}] if text and isinstance(text, str) else text
    if not messages:
        messages = [prompt] if isinstance(prompt, str) else prompt
    if not isinstance(messages, list) or not messages:
        return []
    first = sent.get("system") or sent.get("instructions")
    return [*([{"role": "system", "content": first}] if first else ()), *messages[:before]]


def _content(value: object) -> list[object]:
    """Returns the content of a message, independent of how it is split into parts."""
    if isinstance(value, list):
        return [item for part in value if not _is_reasoning(part) for item in _content(part)]
    if not isinstance(value, dict):
        return [] if value in (None, "") else [value]
    known = [name for name in _CONTENT if name in value]
    if not known and value.get("type") is None:  # The value is the arguments of a call.
        return [msgspec.json.encode(value, order="sorted").decode()]
    return [item for name in known for item in _content(value[name])]


def _is_reasoning(value: object) -> bool:
    """Returns whether a part is reasoning, which clients may leave out."""
    return isinstance(value, dict) and value.get("type") in _REASONING


def _is_reference(value: object) -> bool:
    return isinstance(value, dict) and value.get("type") == "item_reference"


def _digest(before: bytes, more: bytes) -> bytes:
    return hashlib.blake2b(before + more, digest_size=16).digest()
