"""A recorded call as the answer that its agent gets, the same at every request.

The record holds what was sampled. A stop string ends a reply and is no part of the answer, as with
every provider; the tokens keep it.
"""

from msgspec import structs

from holdfast.gateway.protocol.messages import Answer, AnswerChoice, GenerationRequest
from holdfast.policy.policy import DEADLINE
from holdfast.records.encoding.tokens import unpack_ids, unpack_logprobs
from holdfast.records.history import stream_of
from holdfast.records.message import Message, Role
from holdfast.records.step import Called, Generated
from holdfast.rollout.replay.session import Session


def build_answer(
    session: Session, called: Called, request: GenerationRequest, *, bare: bool
) -> Answer:
    """`bare`: the reply is text, whatever it looks like."""
    steps = [session.history.steps[path] for path in called.choices]
    replies = [step for step in steps if isinstance(step, Generated)]
    assert len(replies) == len(steps), "a call is answered by generations"
    # Choices of one prompt share it.
    prompts = replies[:: request.n]
    return Answer(
        id=called.answer,
        created=called.created,
        model=called.model,
        choices=tuple(_choice(session, step, request, bare=bare) for step in replies),
        prompt_tokens=sum(step.counted.prompt_tokens for step in prompts),
        completion_tokens=sum(step.counted.completion_tokens for step in replies),
        cached_tokens=sum(step.keep for step in prompts),
        engine_cached_tokens=sum(step.counted.cached_tokens for step in prompts),
        reasoning_tokens=sum(step.counted.reasoning_tokens for step in replies),
    )


def sent_message(step: Generated) -> Message:
    """The reply as the agent gets it, and sends it back."""
    return _cut(step)[0]


def _choice(
    session: Session, step: Generated, request: GenerationRequest, *, bare: bool
) -> AnswerChoice:
    reason = "length" if step.finish_reason == DEADLINE else step.finish_reason
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
