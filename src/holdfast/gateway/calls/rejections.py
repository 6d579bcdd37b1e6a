"""Refusals: the calls of one attempt that were refused, or could not be answered.

An agent may hide from everyone that it was refused, and end as if its task was done. So each
refusal is durable before the agent is told, and what becomes of the trajectory goes by the record:
a call is made good only by a later answer to the same conversation, or to one that goes on from it.
"""

import contextlib
import hashlib
import re
from enum import StrEnum

import msgspec
from msgspec import structs

from holdfast import crashpoint
from holdfast.gateway.protocol.errors import AgentFailed, RefusedCall, UnansweredCall
from holdfast.gateway.protocol.messages import Answer, RequestRejected
from holdfast.records.errors import RunStopped
from holdfast.records.redaction import redact
from holdfast.records.step import CallRefused
from holdfast.rollout.replay.session import Session

MOST_OPEN = 64
"""That are recorded while none of them is made good; more of them change nothing."""
_OURS = (408, 500, 502, 503, 504)
"""Of these, the agent is not to blame."""
_START = b"\0" * 16
_WORDS = (
    "arguments",
    "call_id",
    "content",
    "function",
    "input",
    "name",
    "output",
    "role",
    "text",
    "tool_call_id",
    "tool_calls",
    "tool_use_id",
)
"""The members of a message that say something; whatever else there is may be left out next time."""
_THOUGHTS = ("reasoning", "thinking", "redacted_thinking")
_ELSEWHERE = ("previous_response_id", "conversation")
"""In place of what was said before: then nobody knows the conversation."""
_AT_MESSAGE = re.compile(r"(?:messages|input)[.\[](\d+)")
"""How wires name one message of a request."""


class OnRefused(StrEnum):
    """What becomes of a trajectory whose agent was refused a call and did not ask again."""

    FAIL = "fail"
    """It has failed: what the agent did without the answer is no outcome of the policy."""
    ACCEPT = "accept"
    """It ends as the agent says; the refused calls stand in the record."""


class Refusals:
    """Those of one attempt. They belong to it also where its agent outlived a gateway."""

    def __init__(self, session: Session):
        self._session = session

    @property
    def open(self) -> list[CallRefused]:
        """Those that were not made good, in their order."""
        attempt = self._attempt
        found = self._session.history.refusals.values()
        return [one for one in found if one.attempt == attempt and not one.answer]

    async def add(self, refused: RequestRejected, *, wire: str, body: bytes) -> None:
        """Makes a refusal durable; the agent is told afterwards. `body`: that of the call."""
        session = self._session
        # Put right, a message that was refused is another: what is asked again begins before it.
        at = _AT_MESSAGE.match(refused.param or "")
        said = (_conversation(body, before=int(at[1]) if at else None) or [_START])[-1]
        key = _digest(said, f"{wire} {refused.status} {refused.message}".encode())
        attempt = self._attempt
        known = session.history.refusals.get((attempt, key))
        if (known is not None and not known.answer) or len(self.open) >= MOST_OPEN:
            return
        # An attempt that is over meanwhile has its outcome without it.
        with contextlib.suppress(RunStopped):
            await session.log.append(
                CallRefused(
                    key,
                    attempt,
                    wire,
                    said,
                    refused.status,
                    refused.code,
                    redact(refused.message),
                    session.clock.now(),
                )
            )
            crashpoint.reach("gateway.refused")

    async def answered(self, answer: Answer, *, body: bytes) -> None:
        """A call is about to be told its answer: what it asks again is made good."""
        if not (waiting := self.open):
            return
        said = {_START, *_conversation(body)}
        good = [structs.replace(one, answer=answer.id) for one in waiting if one.said in said]
        if good:
            await self._session.log.append(*good)

    def failure(self) -> AgentFailed | None:
        """That of an agent which ended as if it had been answered; None where it was."""
        if not (found := self.open):
            return None
        first = next((one for one in found if one.status not in _OURS), found[0])
        more = f" (and {len(found) - 1} more like it)" if len(found) > 1 else ""
        words = f"{first.wire} was answered with {first.status}: {first.message}{more}"
        if first.status in _OURS:
            return UnansweredCall(f"a call of the agent was not answered: {words}")
        return RefusedCall(f"a call of the agent was refused, and it did not ask again: {words}")

    @property
    def _attempt(self) -> int:
        return max(1, len(self._session.history.attempts) + self._session.log.is_unstarted)


def _conversation(body: bytes, *, before: int | None = None) -> list[bytes]:
    """The digest after each message of a request, read as far as it can be, whatever was wrong with
    it; `before`: only of the messages before that one. None of what cannot be read: any
    conversation goes on from that."""
    try:
        sent = msgspec.json.decode(body)
        return _digests(sent, before) if isinstance(sent, dict) else []
    except (ValueError, RecursionError):
        return []


def _digests(sent: dict[str, object], before: int | None) -> list[bytes]:
    messages = _messages(sent, before)
    if any(sent.get(name) for name in _ELSEWHERE) or any(map(_refers, messages)):
        return []
    found, last = [], _START
    for one in messages:
        if not _is_thought(one):
            last = _digest(last, msgspec.json.encode(_words(one)))
            found.append(last)
    return found


def _messages(sent: dict[str, object], before: int | None) -> list[object]:
    """All that was said, whichever wire says it: the same text is the same message on each."""
    said, text, prompt = (sent.get(name) for name in ("messages", "input", "prompt"))
    if not said:
        said = [{"role": "user", "content": text}] if text and isinstance(text, str) else text
    if not said:
        said = [prompt] if isinstance(prompt, str) else prompt
    if not isinstance(said, list) or not said:
        return []
    first = sent.get("system") or sent.get("instructions")
    return [*([{"role": "system", "content": first}] if first else ()), *said[:before]]


def _words(value: object) -> list[object]:
    """What a message says, however it is cut into parts."""
    if isinstance(value, list):
        return [word for one in value if not _is_thought(one) for word in _words(one)]
    if not isinstance(value, dict):
        return [] if value in (None, "") else [value]
    known = [name for name in _WORDS if name in value]
    if not known and value.get("type") is None:  # Arguments of a call.
        return [msgspec.json.encode(value, order="sorted").decode()]
    return [word for name in known for word in _words(value[name])]


def _is_thought(value: object) -> bool:
    """Which clients leave out as they like."""
    return isinstance(value, dict) and value.get("type") in _THOUGHTS


def _refers(value: object) -> bool:
    return isinstance(value, dict) and value.get("type") == "item_reference"


def _digest(before: bytes, more: bytes) -> bytes:
    return hashlib.blake2b(before + more, digest_size=16).digest()
