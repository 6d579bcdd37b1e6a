"""Told: a recorded call as the agent is told it, now and whenever it asks again.

What is recorded is what was sampled. A stop string ends a reply and is no part of what is told, as
every provider has it; the tokens keep it.
"""

from msgspec import structs

from holdfast.gateway.protocol.messages import Answer, AnswerChoice, Ask
from holdfast.policy.policy import DEADLINE
from holdfast.records.history import stream_of
from holdfast.records.message import Message, Role
from holdfast.records.step import Called, Generated
from holdfast.records.tokens import count, unpack_ids, unpack_logprobs
from holdfast.rollout.replay.session import Session


def answer_of(session: Session, called: Called, ask: Ask, *, bare: bool) -> Answer:
    """`bare`: the reply is text, whatever it looks like."""
    steps = [session.history.steps[path] for path in called.choices]
    said = [step for step in steps if isinstance(step, Generated)]
    assert len(said) == len(steps), "a call is answered by generations"
    return Answer(
        id=called.answer,
        created=called.created,
        model=called.model,
        choices=tuple(_choice(session, step, ask, bare=bare) for step in said),
        # Choices of one prompt share it.
        prompt_tokens=sum(step.keep + count(step.delta) for step in said[:: ask.n]),
        completion_tokens=sum(count(step.ids) for step in said),
        cached_tokens=sum(step.keep for step in said[:: ask.n]),
    )


def message_of(step: Generated) -> Message:
    """The reply as it is told, and as the agent sends it back."""
    return _cut(step)[0]


def _choice(session: Session, step: Generated, ask: Ask, *, bare: bool) -> AnswerChoice:
    reason = "length" if step.finish_reason == DEADLINE else step.finish_reason
    if step.message.tool_calls and reason == "stop":
        reason = "tool_calls"
    message, stop = _cut(step)
    if bare:
        message = Message(Role.ASSISTANT, message.text)
    choice = AnswerChoice(message, reason, stop)
    if ask.token_ids:
        choice = structs.replace(choice, **_ids(session, step))
    if not ask.logprobs:
        return choice
    decode = session.speaker.renderer.decode
    ids = unpack_ids(step.ids)
    return structs.replace(
        choice,
        tokens=tuple(decode([token]) for token in ids),
        logprobs=tuple(unpack_logprobs(step.logprobs).tolist()),
    )


def _ids(session: Session, step: Generated) -> dict[str, tuple[int, ...]]:
    ids, stream = unpack_ids(step.ids), stream_of(session.history, step.path)
    return {"ids": tuple(ids), "prompt_ids": tuple(stream[: len(stream) - len(ids)])}


def _cut(step: Generated) -> tuple[Message, str | None]:
    """Without the first stop string and what follows it, and which one that is."""
    message = step.message
    if step.finish_reason != "stop" or not step.sampling.stop:
        return message, None
    text = message.text
    found = [(at, stop) for stop in step.sampling.stop if (at := text.find(stop)) >= 0]
    if not found or message.tool_calls:
        return message, None
    at, stop = min(found)
    return structs.replace(message, content=text[:at]), stop
