"""Turns a recorded call into the answer for its agent, and looks up what a wire needs to parse a
request.

The same record always gives the same answer. The record holds everything that was sampled, while
the answer ends before the stop string, as with every provider.

An agent sends its whole conversation with each call. The part that repeats an earlier request byte
for byte comes from a cache, and only the rest is parsed and hashed. So a call costs no more at the
end of a long trajectory than at its beginning. The cache only saves time and never changes a
result. Earlier answers that a request names by id come from the record, not from the cache. So
every later process finds them, and no process finds an answer from before a fork.
"""

from collections.abc import Callable

from msgspec import Raw, structs

from holdfast.gateway.calls import digest
from holdfast.gateway.protocol.messages import (
    Answer,
    AnswerChoice,
    EarlierAnswer,
    GenerationRequest,
)
from holdfast.policy.policy import DEADLINE
from holdfast.records.conversation import conversation
from holdfast.records.encoding.tokens import unpack_ids, unpack_logprobs
from holdfast.records.history import stream_of
from holdfast.records.message import Message, Role
from holdfast.records.step import Called, Generated
from holdfast.rollout.replay.session import Session


def build_answer(
    session: Session, called: Called, request: GenerationRequest, *, bare: bool
) -> Answer:
    """Returns the answer of a recorded call. With `bare`, the replies are plain text, even if they
    look like tool calls."""
    steps = [session.history.steps[path] for path in called.choices]
    replies = [step for step in steps if isinstance(step, Generated)]
    assert len(replies) == len(steps), "a call is answered by generations"
    usages = [step.counted for step in replies]
    # The choices of a request share its prompt.
    prompts = usages[:: request.n]
    return Answer(
        id=called.answer,
        created=called.created,
        model=called.model,
        choices=tuple(_choice(session, step, request, bare=bare) for step in replies),
        prompt_tokens=sum(usage.prompt_tokens for usage in prompts),
        completion_tokens=sum(usage.completion_tokens for usage in usages),
        cached_tokens=sum(step.keep for step in replies[:: request.n]),
        engine_cached_tokens=sum(usage.cached_tokens for usage in prompts),
        reasoning_tokens=sum(usage.reasoning_tokens for usage in usages),
    )


def sent_message(step: Generated) -> Message:
    """Returns the reply as the agent gets it and later sends it back."""
    return _cut(step)[0]


def _choice(
    session: Session, step: Generated, request: GenerationRequest, *, bare: bool
) -> AnswerChoice:
    reason = step.finish_reason
    reason = "length" if reason == DEADLINE else reason
    message, stop = _cut(step)
    if bare:
        message = Message(Role.ASSISTANT, message.text)
    choice = AnswerChoice(message, reason, stop)
    if request.token_ids:
        ids, stream = unpack_ids(step.ids), stream_of(session.history, step.path)
        prompt_ids = tuple(stream[: len(stream) - len(ids)])
        choice = structs.replace(choice, ids=tuple(ids), prompt_ids=prompt_ids)
    if not request.logprobs:
        return choice
    decode = session.speaker.renderer.decode
    return structs.replace(
        choice,
        tokens=tuple(decode([token]) for token in unpack_ids(step.ids)),
        logprobs=tuple(unpack_logprobs(step.logprobs).tolist()),
    )


def _cut(step: Generated) -> tuple[Message, str | None]:
    """Returns the message, cut before its first stop string, and the stop string if there is
    one."""
    message = step.message
    if not step.sampling.stop or step.finish_reason != "stop":
        return message, None
    text = message.text
    stops = [(at, stop) for stop in step.sampling.stop if (at := text.find(stop)) >= 0]
    if not stops or message.tool_calls:
        return message, None
    at, stop = min(stops)
    return structs.replace(message, content=text[:at]), stop


Messages = tuple[Message, ...]
Parse = Callable[[bytes], Messages]
MAX_CONVERSATIONS = 4
"""The most cached conversations: those of an agent and its sub-agents."""
MIN_MESSAGES = 16
"""The fewest messages of a cached conversation. Shorter conversations are faster to parse than to
cache."""


class ConversationCache:
    """Caches the latest conversations of one trajectory."""

    def __init__(self) -> None:
        # Replaced, never changed: large requests are parsed in threads, several at once.
        self._sent: tuple[tuple[bytes, Messages], ...] = ()
        """For each conversation, its JSON without the closing bracket, and its messages. The latest
        conversation is last."""
        self._digests: tuple[tuple[Messages, list[bytes]], ...] = ()

    def messages(self, sent: Raw, parse: Parse) -> Messages:
        """Returns the messages of a JSON array. `parse` parses an array of messages, and its errors
        are passed on."""
        raw = bytes(sent)
        parsed: Messages | None = None
        others = self._sent
        for known, messages in others:
            if raw.startswith(known) and (rest := _rest(raw, len(known))) is not None:
                parsed = messages + parse(rest)
                others = tuple(sent for sent in others if sent[0] is not known)
                break
        parsed = parse(raw) if parsed is None else parsed
        if len(parsed) >= MIN_MESSAGES:
            latest = others[1 - MAX_CONVERSATIONS :]
            self._sent = (*latest, (raw.rstrip()[:-1].rstrip(), parsed))
        return parsed

    def digests(self, messages: Messages) -> list[bytes]:
        """Returns `digest.digests(messages)`, with known beginnings taken from the cache."""
        chained: list[bytes] = []
        others = self._digests
        for known, digests in others:
            if messages[: len(known)] == known:
                chained = digests
                others = tuple(kept for kept in others if kept[1] is not digests)
                break
        last = chained[-1] if chained else digest.START
        chained = chained + digest.digests(messages[len(chained) :], last)
        if len(chained) >= MIN_MESSAGES:
            self._digests = (*others[1 - MAX_CONVERSATIONS :], (messages, chained))
        return chained


def _rest(raw: bytes, known: int) -> bytes | None:
    """Returns the elements after the known part of a JSON array, as another JSON array. Returns
    None if the known part does not end with a whole element."""
    rest = raw[known:].lstrip()
    if rest[:1] == b",":
        return b"[" + rest[1:]
    return b"[]" if rest == b"]" else None


class TrajectoryLookup(ConversationCache):
    """Looks up earlier messages and answers for the requests of one trajectory."""

    def __init__(self, session: Session):
        super().__init__()
        self._session = session

    def earlier_answer(self, answer: str) -> EarlierAnswer | None:
        history = self._session.history
        calls = list(history.calls.values())  # The loop may add one meanwhile.
        called = next((call for call in calls if call.answer == answer), None)
        step = None if called is None else history.steps.get(called.path)
        if called is None or not isinstance(step, Generated):
            return None
        messages = conversation(history, self._session.task, step)
        # Results of tools that the gateway ran may follow.
        end = max(at for at, message in enumerate(messages) if message is step.message)
        rebuilt = build_answer(
            self._session, called, GenerationRequest(called.model, ()), bare=False
        )
        return EarlierAnswer(rebuilt, (*messages[:end], sent_message(step)), called.instructed)
