"""One generation: its request to the policy, its drafts, and its record.

With partial durability, tokens become durable while they are sampled. A generation may be
interrupted by a kill of this process or of the engine. It then continues from its last durable
token, and its record holds only the tokens that no draft holds.
"""

import hashlib
import itertools
import json
from array import array
from collections.abc import Awaitable, Callable
from functools import partial

import msgspec
from msgspec import Struct, structs

from holdfast.off_loop import MIN_THREAD_SIZE, off_loop
from holdfast.policy.policy import DEADLINE, Completion, Draft, Partial, Request
from holdfast.policy.rendering.messages_only import MessagesOnly
from holdfast.policy.rendering.parse_tool_calls import without_calls
from holdfast.policy.rendering.structure import structure_of
from holdfast.records.encoding.tokens import count, unpack_ids
from holdfast.records.errors import EnvironmentBroken, Truncated, Unsupported
from holdfast.records.message import Message, Role, put_reasoning_back
from holdfast.records.samples.experts import RoutedExperts
from holdfast.records.sampling import Sampling
from holdfast.records.step import STOPPED, Drafted, Generated
from holdfast.rollout.replay.prompt import Prompt
from holdfast.rollout.replay.session import Session, is_accident
from holdfast.rollout.replay.speaker import Speaker


class GenerateStep(Struct, frozen=True):
    """A generation before it runs."""

    path: str
    prompt: Prompt
    ids: "array[int]"
    """The token ids of the whole prompt."""
    sampling: Sampling
    tools: tuple[dict[str, object], ...]
    messages: tuple[Message, ...]
    added: tuple[Message | str, ...]
    seed_from: str = ""
    """A text from which the seed and the ids of tool calls are derived instead of from `path`, or
    ""."""
    seed: int | None = None
    """A seed given by the caller, which replaces the derived seed."""
    bare: bool = False
    """Whether the prompt is plain text instead of a conversation. Then the reply is plain text,
    too."""


_NOBODY = (b"", 0, 0)
_LONGEST_TOKEN = 16
"""The most characters of a token. It gives a lower bound on the number of tokens in a text."""
_THINKING_SLACK = 64
"""The number of tokens that an engine may need to finish its reasoning after the budget is used
up."""


class DraftListener(Struct, frozen=True):
    """Receives the tokens of a generation while they are sampled, as soon as they are durable."""

    hear: Callable[[Draft], None]
    """Called with each draft. The first draft contains the tokens that an earlier process made
    durable."""
    every: int
    """The number of tokens between two calls."""
    seconds: float | None
    """The seconds between two calls if tokens come slowly. None stands for a default of a few
    seconds."""
    call: bytes = b""
    """A value that is recorded with the drafts (see `Drafted`)."""
    occurrence: int = 0
    created: int = 0


async def sample(
    session: Session,
    speaker: Speaker,
    turn: GenerateStep,
    seconds: float | None = None,
    *,
    audience: DraftListener | None = None,
) -> Completion:
    _check_possible(speaker, turn)
    key = session.lease.key
    draft = _durable_draft(session, speaker, turn)
    if audience is not None and draft.ids:
        audience.hear(draft)
    experts_from = _experts_from(session, speaker, turn)
    request = Request(
        prompt=turn.ids,
        sampling=_with_experts(turn.sampling, experts=experts_from is not None),
        seed=session.seed_at(turn.seed_from or turn.path) if turn.seed is None else turn.seed,
        id=f"{session.name}/{turn.path}",
        stop_token_ids=_stop_token_ids(speaker, turn.sampling),
        home=session.name,
        family=key.task,
        draft=draft,
        partial=_partial(session, speaker, turn, audience),
        decode=partial(speaker.renderer.decode, special=False),
        seconds=seconds,
        experts_from=experts_from,
    )
    if isinstance(speaker.renderer, MessagesOnly):
        request = structs.replace(request, messages=turn.messages, tools=turn.tools)
    elif structure := structure_of(speaker.renderer, turn.sampling, turn.tools):
        request = structs.replace(request, structure=structure)
    return await speaker.policy.sample(request)


def _with_experts(sampling: Sampling, *, experts: bool) -> Sampling:
    """Returns the sampling with `experts` as its `routed_experts`."""
    if sampling.routed_experts == experts:
        return sampling
    return structs.replace(sampling, routed_experts=experts)


def _experts_from(session: Session, speaker: Speaker, turn: GenerateStep) -> int | None:
    """Returns the position of the first token whose routed experts are wanted, or None if none are
    wanted.

    If the base generation recorded its experts, this is the last token that the prompt keeps. The
    base has experts for all tokens but its last, because no model had processed that token yet.
    """
    if not turn.sampling.routed_experts or not speaker.trained:
        return None
    base = session.history.steps.get(turn.prompt.base)
    has_experts = isinstance(base, Generated) and base.experts is not None
    return max(turn.prompt.keep - 1, 0) if has_experts else 0


async def _keep_experts(
    session: Session, speaker: Speaker, turn: GenerateStep, completion: Completion
) -> RoutedExperts | None:
    """Stores the routed experts durably and returns a reference to them, or None if there are
    none."""
    experts, start = completion.experts, _experts_from(session, speaker, turn)
    if experts is None or start is None:
        return None
    blob = await session.blobs.put_blob(experts.data)
    end = start + experts.rows
    return RoutedExperts(blob, start, end, experts.width, experts.layers, experts.size)


async def run_step(
    session: Session, speaker: Speaker, turn: GenerateStep, seconds: float | None
) -> Generated:
    """Samples and records a turn. An error that the policy did not cause fails the attempt."""
    try:
        completion = await _sample_within_limits(session, speaker, turn, seconds)
    except Exception as error:
        if is_accident(error):
            session.state.fail(error, turn.path)
        raise
    step = await build_step(session, speaker, turn, completion)
    await session.log.append(without_drafted(session, step))
    return step


async def _sample_within_limits(
    session: Session, speaker: Speaker, turn: GenerateStep, seconds: float | None
) -> Completion:
    """Samples as `sample` does. If a speaker other than the run's policy reaches a limit, for
    example a simulated user with a full context, raises `EnvironmentBroken`."""
    try:
        completion = await sample(session, speaker, turn, seconds)
    except Truncated as limit:
        if speaker.trained:
            raise
        raise EnvironmentBroken(f"another speaker met a limit: {limit}") from limit
    if completion.finish_reason == DEADLINE and not speaker.trained:
        # Not recorded, because on replay it would fail every later attempt, too.
        raise EnvironmentBroken("another speaker met its deadline")
    return completion


def _stop_token_ids(speaker: Speaker, sampling: Sampling) -> tuple[int, ...]:
    """Returns the token ids that end the reply. With `ignore_eos`, these are only the requested
    ones."""
    own = () if sampling.ignore_eos else speaker.renderer.stop_token_ids
    return tuple(dict.fromkeys((*own, *sampling.stop_token_ids)))


def _check_possible(speaker: Speaker, turn: GenerateStep) -> None:
    """Raises `Unsupported` if the turn asks for JSON and offers tools to an engine that is sent
    tokens."""
    if turn.sampling.json is False or not turn.tools:
        return
    if not isinstance(speaker.renderer, MessagesOnly):
        raise Unsupported(
            "json", "a reply that is kept to JSON cannot call tools: ask for one or the other"
        )


def _durable_draft(session: Session, speaker: Speaker, turn: GenerateStep) -> Draft:
    draft = session.history.drafts.get(turn.path)
    if draft is None or draft.fingerprint != turn.prompt.fingerprint:
        return Draft()
    if draft.model != speaker.policy.model:
        return Draft()
    return Draft(0, draft.ids, draft.logprobs, draft.versions, draft.logprobs_mode)


def _partial(
    session: Session, speaker: Speaker, turn: GenerateStep, audience: DraftListener | None
) -> Partial | None:
    if audience is None:
        every = session.context.partial_tokens
        return Partial(_make_saver(session, speaker, turn), every) if every else None
    every = min(audience.every, session.context.partial_tokens or audience.every)
    return Partial(_make_saver(session, speaker, turn, audience), every, audience.seconds)


def _make_saver(
    session: Session, speaker: Speaker, turn: GenerateStep, audience: DraftListener | None = None
) -> Callable[[Draft], Awaitable[None]]:
    async def save(draft: Draft) -> None:
        await session.log.append(
            Drafted(
                turn.path,
                turn.prompt.fingerprint,
                draft.start,
                draft.ids,
                draft.logprobs,
                draft.versions,
                speaker.policy.model,
                *((audience.call, audience.occurrence, audience.created) if audience else _NOBODY),
                draft.logprobs_mode,
            )
        )
        if audience is not None:
            audience.hear(draft)

    return save


async def build_step(
    session: Session, speaker: Speaker, turn: GenerateStep, completion: Completion
) -> Generated:
    """Builds the record of a generation, with all of its tokens."""
    size = len(turn.ids) + count(completion.ids)
    if not turn.sampling.separate_reasoning:
        completion = _with_raw_message(completion)
    parse = partial(_message, speaker, turn, completion)
    message = parse() if size < MIN_THREAD_SIZE else await off_loop(parse, size=size)
    return Generated(
        path=turn.path,
        fingerprint=turn.prompt.fingerprint,
        base=turn.prompt.base,
        keep=turn.prompt.keep,
        delta=turn.prompt.delta.tobytes(),
        ids=completion.ids,
        logprobs=completion.logprobs,
        engine_finish_reason=completion.finish_reason,
        versions=completion.versions,
        message=_with_call_ids(message, session, turn),
        added=turn.added,
        model=completion.model,
        sampling=turn.sampling,
        tries=completion.tries,
        seconds=completion.seconds,
        prefix_break=turn.prompt.prefix_break,
        seams=completion.seams,
        trainable=speaker.trained and completion.message is None,
        logprobs_mode=completion.logprobs_mode,
        usage=completion.usage,
        tools=_tools_to_record(session, turn),
        experts=await _keep_experts(session, speaker, turn, completion),
        reasoning_tags=completion.reasoning_tags,
        dialect=completion.dialect,
    )


def _with_raw_message(completion: Completion) -> Completion:
    if completion.message is None:
        return completion
    raw = put_reasoning_back(completion.message, completion.reasoning_tags)
    return structs.replace(completion, message=raw, reasoning_tags=())


def _tools_to_record(session: Session, turn: GenerateStep) -> str | None:
    """Returns the tools as JSON, or None if an earlier record already has the same tools (see
    `Generated.tools`)."""
    shown = msgspec.json.encode(turn.tools).decode()
    known = session.history.shown_tools.get(turn.prompt.base)
    if known is None:
        known = msgspec.json.encode(session.task.tools).decode()
    return None if shown == known else shown


def _message(speaker: Speaker, turn: GenerateStep, completion: Completion) -> Message:
    message = completion.message or _parse(speaker, turn, unpack_ids(completion.ids))
    _check_json(turn, completion, message)
    _check_calls(turn, completion, message)
    _check_thinking(speaker, turn, message)
    return message


def _parse(speaker: Speaker, turn: GenerateStep, ids: "array[int]") -> Message:
    if turn.bare:
        return Message(Role.ASSISTANT, speaker.renderer.decode(ids, special=False))
    message = speaker.renderer.parse(ids, prompt=turn.ids, tools=turn.tools)
    if turn.tools or not message.tool_calls:
        return message
    # A model without tools cannot call any, so text that looks like a call stays text.
    stops = speaker.renderer.stop_token_ids
    reply_ids = itertools.takewhile(lambda token: token not in stops, ids)
    return without_calls(message, speaker.renderer.decode(array("i", reply_ids)))


def _check_json(turn: GenerateStep, completion: Completion, message: Message) -> None:
    """Raises `Unsupported` if the engine was asked for JSON and the reply is something else,
    because an engine may ignore the parameter.

    A reply that was cut or that calls a tool is not checked, and neither is a turn with stop texts.
    """
    sampling = turn.sampling
    if sampling.json is False or completion.finish_reason not in STOPPED:
        return
    if sampling.stop or message.tool_calls:
        return
    try:
        json.loads(message.text)
    except (ValueError, RecursionError) as error:
        raise Unsupported(
            "json",
            "the engine was asked for JSON and answered something else: it does not know how, or "
            "its reply began with reasoning that is not set apart (vLLM: "
            f"--reasoning-parser). It begins: {message.text[:100]!r}",
        ) from error


def _check_calls(turn: GenerateStep, completion: Completion, message: Message) -> None:
    """Raises `Unsupported` if the engine was asked for a tool call and the reply has none."""
    sampling = turn.sampling
    if not sampling.tool_choice or completion.finish_reason not in STOPPED or sampling.stop:
        return
    called = {call.name for call in message.tool_calls}
    if called and sampling.forced_tool in ("", *called):
        return
    raise Unsupported(
        "tool_choice",
        "the engine was asked for a tool call and answered something else: it does not know how, "
        "or its reply began with reasoning that is not set apart (vLLM: "
        f"--reasoning-parser). It begins: {message.text[:100]!r}",
    )


def _check_thinking(speaker: Speaker, turn: GenerateStep, message: Message) -> None:
    """Raises `Unsupported` if the reasoning is so much longer than its token budget that the engine
    must have ignored the budget. The number of tokens may be an estimate."""
    budget, reasoning = turn.sampling.thinking_token_budget, message.reasoning
    if budget is None or not reasoning:
        return
    encode = getattr(speaker.renderer, "encode", None)
    tokens = len(encode(reasoning, whole=False)) if encode else len(reasoning) // _LONGEST_TOKEN
    if tokens > budget + budget // 8 + _THINKING_SLACK:
        raise Unsupported(
            "thinking_token_budget",
            f"the engine was asked to end its reasoning after {budget:,} tokens and reasoned for "
            f"about {tokens:,}: it does not know how (a recent vLLM does, with --reasoning-parser)",
        )


def without_drafted(session: Session, step: Generated) -> Generated:
    """Returns the step for the record, without the tokens that a durable draft already holds."""
    draft = session.history.drafts.get(step.path)
    if draft is None or (draft.fingerprint, draft.model) != (step.fingerprint, step.model):
        return step
    kept = len(draft.ids)
    assert step.ids[:kept] == draft.ids, "a completion begins with what is durable of it"
    return structs.replace(
        step, drafted=count(draft.ids), ids=step.ids[kept:], logprobs=step.logprobs[kept:]
    )


def _with_call_ids(message: Message, session: Session, turn: GenerateStep) -> Message:
    if not message.tool_calls:
        return message
    name = turn.path.replace(".", "_")
    if turn.seed_from:
        # The numbers of concurrent calls depend on timing, but ids must not: an agent sends ids
        # back, so they become part of its next request.
        name = hashlib.sha256(f"{session.name}/{turn.seed_from}".encode()).hexdigest()[:16]
    calls = tuple(
        call if call.id else structs.replace(call, id=f"call_{name}_{index}")
        for index, call in enumerate(message.tool_calls)
    )
    return structs.replace(message, tool_calls=calls)
