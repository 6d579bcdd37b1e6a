"""The durable context `t`. Each step that a rollout awaits on it is journaled.

A rollout is an ordinary async function with one argument, a `Rollout`. When the function is started
again, recorded steps return their results at memory speed, and the first step without a record runs
for real. User code has one duty: between steps it must be deterministic, so it reads clocks, random
numbers and outside data through `value`.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import NoReturn, TypeVar

import msgspec

from holdfast.policy.policy import DEADLINE
from holdfast.records.encoding.declared import checks_arguments
from holdfast.records.errors import Truncated, UsageError
from holdfast.records.failure import as_exception
from holdfast.records.history import added_messages, tool_message
from holdfast.records.message import Message, ToolCall, user
from holdfast.records.sampling import Sampling
from holdfast.records.step import Generated, ValueRecorded, is_cut_by, scope_of
from holdfast.records.task import Task
from holdfast.records.trajectory import TrajectoryKey, Truncation
from holdfast.rollout import validate
from holdfast.rollout.episodes.environment import Environment, Observation
from holdfast.rollout.episodes.episode import BoundTool, Episode
from holdfast.rollout.replay import divergence
from holdfast.rollout.replay.budget import Budget, Limits, Spent
from holdfast.rollout.replay.current_code import (
    StepScope,
    check_not_in_environment,
    check_not_in_step,
    check_own_attempt,
    enclosing_step,
)
from holdfast.rollout.replay.generate_step import GenerateStep, run_step
from holdfast.rollout.replay.prompt import Stream, fingerprint
from holdfast.rollout.replay.reply import Reply, ToolReply
from holdfast.rollout.replay.session import Session
from holdfast.rollout.replay.speaker import Speaker
from holdfast.rollout.replay.unawaited import breaks_on_misuse, must_be_awaited
from holdfast.rollout.threads.contain import contain
from holdfast.rollout.tool_step import run_calls
from holdfast.rollout.tools.tool import Function, Tool, as_tool, schemas_of

__all__ = ["Reply", "Rollout", "ToolReply"]

Value = TypeVar("Value")


class Rollout:
    """The context of one trajectory, or of one branch of a trajectory. The engine creates it, and a
    rollout uses it as `t`."""

    def __init__(self, session: Session, *, scope: str = "", stream: Stream | None = None):
        self.task: Task = session.task
        self.key: TrajectoryKey = session.lease.key
        self.messages: list[Message] = []
        self._session = session
        self._scope = scope
        self._ordinal = 0
        self.step = ""
        """The path of the step that began last."""
        self._stream = stream or Stream()
        self._sources: dict[int, tuple[Message, str]] = {
            id(message): (message, f"task:{index}")
            for index, message in enumerate(session.task.messages)
        }
        self.last: Reply | None = None
        self.budget = Budget()
        self._sampling = False
        self._schemas: tuple[dict[str, object], ...] = ()
        if not scope:
            session.added_last = self._added_last

    @property
    def session(self) -> Session:
        """The present attempt, for processors that implement their own steps."""
        return self._session

    @property
    def speaker(self) -> Speaker:
        """The run's own policy and renderer."""
        return self._session.speaker

    # --- the conversation

    @breaks_on_misuse
    def add(self, *messages: "Message | Mapping[str, object] | str | Observation") -> None:
        """Adds messages to the conversation. A message is a `Message` or a dict in OpenAI's shape.
        A string or an observation becomes a user message."""
        check_not_in_step(self._session, self._scope, "t.add")
        for message in messages:
            if isinstance(message, Observation):
                self._observe(message)
            else:
                self.messages.append(validate.message_of(message))

    def truncate(self, reason: str) -> NoReturn:
        """Ends the trajectory as truncated, for `reason`. A truncated trajectory is kept and
        scored."""
        self._check_own()
        raise Truncated(str(reason))

    @breaks_on_misuse
    @checks_arguments(own="turns tokens seconds", name="t.limit")
    def limit(
        self,
        *,
        turns: int | None = None,
        tokens: int | None = None,
        seconds: float | None = None,
    ) -> None:
        """Limits what the policy may use. The first turn beyond a limit ends the trajectory as
        truncated.

        Only recorded steps count. So a resumed rollout has spent exactly as much as before.
        """
        check_not_in_step(self._session, self._scope, "t.limit")
        self.budget.limits = Limits(turns, tokens, seconds)

    @property
    def spent(self) -> Spent:
        """The turns, tokens and seconds used so far."""
        return self.budget.copy().spent

    # --- steps

    @must_be_awaited("t.generate")
    async def generate(
        self,
        *,
        tools: "Sequence[Tool | Function | dict[str, object]] | None" = (),
        max_tokens: int | None = None,
        temperature: float | None = None,
        top_p: float | None = None,
        stop: tuple[str, ...] | list[str] | str | None = None,
        json: bool | Mapping[str, object] | str | None = None,
        reasoning_effort: str | None = None,
        thinking_token_budget: int | None = None,
        top_k: int | None = None,
        min_p: float | None = None,
        presence_penalty: float | None = None,
        frequency_penalty: float | None = None,
        repetition_penalty: float | None = None,
        logit_bias: Mapping[int, float] | None = None,
        stop_token_ids: Sequence[int] | None = None,
        ignore_eos: bool | None = None,
        extra_body: Mapping[str, object] | None = None,
        chat_template_kwargs: Mapping[str, object] | None = None,
        separate_reasoning: bool | None = None,
        speaker: Speaker | None = None,
    ) -> Reply:
        """Samples the assistant's next message and adds it to the conversation.

        If a parameter is None, the run's sampling decides. Without `tools`, the model gets no
        tools. `json` is True for any JSON object, or the JSON schema that the reply has to fit.
        docs/engines.md lists which engine supports which of the other parameters.

        With a `speaker`, its policy and renderer are used instead of the run's.
        """
        session = self._session
        check_not_in_step(session, self._scope, "t.generate")
        if self._sampling:
            raise UsageError(
                "two generations at once would be two ends of one conversation; use t.branch"
            )
        speaker = speaker or session.speaker
        if (edit := session.history.edits.get(f"{self._scope}{self._ordinal}")) is not None:
            edit.apply(self.messages)
        schemas = self._schemas = schemas_of(() if tools is None else tools)
        messages = validate.conversation_of(self.messages, schemas, speaker.renderer)
        requested = validate.sampling_of(
            session.context.spec.sampling,
            max_tokens=max_tokens,
            temperature=temperature,
            top_p=top_p,
            stop=stop,
            json=json,
            reasoning_effort=reasoning_effort,
            thinking_token_budget=thinking_token_budget,
            top_k=top_k,
            min_p=min_p,
            presence_penalty=presence_penalty,
            frequency_penalty=frequency_penalty,
            repetition_penalty=repetition_penalty,
            logit_bias=logit_bias,
            stop_token_ids=stop_token_ids,
            ignore_eos=ignore_eos,
            extra_body=extra_body,
            chat_template_kwargs=chat_template_kwargs,
            separate_reasoning=separate_reasoning,
        )
        speaker = speaker.at_sampling(requested)
        # Turns of an untrained speaker do not count against the policy's limits.
        budget = self.budget if speaker.trained else Budget()
        sampling = budget.begin(requested)
        path = self._take_place()
        self._sampling = True
        try:
            step = await self._generated(path, speaker, sampling, messages=messages, budget=budget)
        finally:
            self._sampling = False
        self._stream.advance(step, messages, schemas)
        self._remember(step.message, f"reply:{path}", at=len(messages))
        self.last = Reply(step)
        budget.end(step, requested=requested)
        if step.engine_finish_reason == DEADLINE:
            late = Truncation.TIME_BUDGET if budget.is_out_of_time else None
            self.truncate(late or Truncation.GENERATION_DEADLINE)
        return self.last

    @must_be_awaited("t.tool")
    async def tool(self, call: ToolCall, *tools: "Tool | Function") -> ToolReply:
        """Runs the tool that `call` names. If the model made the call, adds the result to the
        conversation. The result of a call that the rollout made itself (`search.call(…)`) is only
        returned.

        The intent is durable before the tool runs. The result is durable before the rollout gets
        it.
        """
        (reply,) = await self._run_tools((call,), tools)
        return reply

    @must_be_awaited("t.tools")
    async def tools(self, calls: Sequence[ToolCall], *tools: "Tool | Function") -> list[ToolReply]:
        """Runs all calls of a turn concurrently, and adds their results in the order of the calls.

        Calls to the same environment run one after the other. If a call raises an error, the other
        calls finish first.
        """
        return await self._run_tools(calls, tools)

    async def _run_tools(
        self, calls: Sequence[ToolCall], tools: "Sequence[Tool | Function]"
    ) -> list[ToolReply]:
        known = [as_tool(tool) for tool in tools]
        self._check_own(*(tool.episode for tool in known if isinstance(tool, BoundTool)))
        validate.check_calls(calls, known, self._schemas)
        if any(call.id for call in calls):
            check_not_in_step(self._session, self._scope, "t.tool with a call of the model's")
        paths = [self._next_path() for _ in calls]
        results, taken = await run_calls(self._session, paths, calls, known)
        self._spend(taken, *paths)
        for path, call in zip(paths, calls, strict=True):
            if call.id:
                message = tool_message(self._session.history, path)
                self._remember(message, f"tool:{path}", at=self._index_of(path))
        return [ToolReply(result.content, result.error) for result in results]

    @must_be_awaited("t.env")
    async def env(self, environment: Environment, *, seed: int | None = None) -> Episode:
        """Opens an environment, and returns a new episode with its first observation.

        The recorded seed is `seed`, or else it is derived from the run's seed or drawn at random.
        An episode that is left open is closed at the end of the attempt.
        """
        episode = Episode(self._session, environment, self._next_path(), self.act)
        await episode.open(seed)
        self._spend(episode.seconds, episode.path)
        return episode

    @must_be_awaited("episode.step")
    async def act(self, episode: Episode, action: str) -> Observation:
        """Does the action in the episode, as `episode.step` does. Use `act` in a branch other than
        the one that opened the episode."""
        self._check_own(episode)
        path = self._next_path()
        seen = await episode.act(path, action)
        self._spend(episode.seconds, path)
        return seen

    @must_be_awaited("t.value")
    async def value(
        self, function: "Callable[[], Awaitable[Value] | Value]", *, name: str | None = None
    ) -> Value:
        """Runs `function` once, records its result and returns it. On replay, returns the recorded
        result. Use it for clocks, random numbers and outside data."""
        label = validate.label_of(function, name)
        path = self._next_path()
        step = await self._session.match(
            path,
            ValueRecorded,
            fingerprint(label.encode()),
            lambda recorded: divergence.of_value(recorded, label),
        )
        if step is None:
            async with StepScope(self._session, path):
                computed = function()
                if asyncio.iscoroutine(computed) or isinstance(computed, Awaitable):
                    computed = await computed
            packed = validate.pack_value(computed, label)
            step = ValueRecorded(path, fingerprint(label.encode()), label, packed)
            await self._session.log.append(step)
        self._spend(0.0, path)
        # Decoded in both cases, so that a live value equals a replayed one.
        decoded: Value = msgspec.msgpack.decode(step.value)
        return decoded

    # --- inside a trajectory: concurrency and sub-rollouts

    @must_be_awaited("t.branch")
    async def branch(self, *rollouts: "Callable[[Rollout], Awaitable[Value]]") -> list[Value]:
        """Runs `rollouts` concurrently as branches of this conversation, and returns their results.
        Each branch starts from the present conversation. The paths of its steps differ from those
        of other branches.

        If a branch raises an error, the other branches are cancelled and awaited, and the error is
        raised. If several branches raise, the worst error is raised.
        """
        validate.check_rollouts(rollouts, "t.branch")
        check_not_in_environment(self._session, self._scope)
        path = self._next_path()
        self._session.log.open_scope(path, f"{len(rollouts)} branches")
        children = [self._child(f"{path}.{index}.") for index in range(len(rollouts))]
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(_run(rollout, child, self._session))
                    for rollout, child in zip(rollouts, children, strict=True)
                ]
        except BaseExceptionGroup as errors:
            worst = as_exception(errors)
            self._session.log.keep_cancelled(f"{path}.")
        else:
            self._join([child.budget for child in children])
            return [task.result() for task in tasks]
        # Outside of the `except`, so that the error keeps its own cause instead of the group.
        raise worst

    @must_be_awaited("t.sub")
    async def sub(self, rollout: "Callable[[Rollout], Awaitable[Value]]") -> Value:
        """Runs a sub-rollout, which has a separate conversation, and returns its result. What it
        spends counts towards the limits of this conversation."""
        validate.check_rollouts((rollout,), "t.sub")
        child = self.beside()
        child.budget = self._budget_below()
        try:
            return await rollout(child)
        finally:
            # Even if a branch raises, its sampled tokens are spent.
            self._join([child.budget])

    @breaks_on_misuse
    def beside(self) -> "Rollout":
        """Returns a second, empty conversation with a separate budget, which can be continued at
        any time. Examples are the other side of a dialogue, or a judge that is asked several times.
        """
        path = self._next_path()
        self._session.log.open_scope(path, "a conversation of its own")
        return Rollout(self._session, scope=f"{path}.0.")

    def _child(self, scope: str) -> "Rollout":
        child = Rollout(self._session, scope=scope, stream=self._stream.copy())
        child.messages = list(self.messages)
        child._sources = dict(self._sources)
        child._schemas = self._schemas
        child.budget = self._budget_below()
        return child

    # --- how steps run

    def _check_own(self, *episodes: Episode) -> None:
        """Raises `UsageError` unless this context and `episodes` belong to the current attempt."""
        check_own_attempt(self._session)
        for episode in episodes:
            episode.check_of(self._session)

    def _next_path(self) -> str:
        inside = enclosing_step(self._session, self._scope)
        return self._take_place() if inside is None else inside.next_path()

    def _take_place(self) -> str:
        """Returns the path of the conversation's next step, and counts the step."""
        self.step = f"{self._scope}{self._ordinal}"
        self._ordinal += 1
        return self.step

    def _spend(self, seconds: float, *paths: str) -> None:
        """Adds `seconds`, and the tokens that were sampled inside the steps at `paths`, to the
        amount spent."""
        if enclosing_step(self._session, self._scope) is None:
            self.budget.spent.seconds += seconds
            for path in paths:
                self.budget.take_inside(self._session.log.sampled_below(path))

    def _budget_below(self) -> Budget:
        inside = enclosing_step(self._session, self._scope)
        if inside is None:
            return self.budget.copy()
        return Budget() if inside.in_environment else self.budget.after(inside.budget)

    def _join(self, branches: Sequence[Budget]) -> None:
        inside = enclosing_step(self._session, self._scope)
        (self if inside is None else inside).budget.join(branches)

    async def _generated(
        self,
        path: str,
        speaker: Speaker,
        sampling: Sampling,
        *,
        messages: list[Message],
        budget: Budget,
    ) -> Generated:
        """Returns the generation at `path`: the recorded one if it matches the request, else a new
        one."""
        session, schemas = self._session, self._schemas
        prompt = await self._stream.prepare(
            messages, schemas, renderer=speaker.renderer, sampling=sampling
        )
        step = await session.match(
            path,
            Generated,
            prompt.fingerprint,
            lambda recorded: divergence.of_generate(
                recorded,
                prompt,
                sampling=sampling,
                renderer=speaker.renderer,
                added_then=lambda step: added_messages(session.history, self.task, step),
            ),
        )
        if step is not None:
            return step
        await session.keep_episodes()
        ids, references = self._stream.prompt_ids(prompt), tuple(map(self._reference, prompt.added))
        turn = GenerateStep(path, prompt, ids, sampling, schemas, tuple(messages), references)
        return await run_step(session, speaker, turn, budget.seconds_left)

    def _observe(self, observation: Observation) -> None:
        message = user(observation.text)
        # A reference must not outlive what it refers to: a fork there must also fork here.
        if observation.path and is_cut_by(f"{self._scope}{self._ordinal}", observation.path):
            self._remember(message, f"env:{observation.path}", at=len(self.messages))
        else:
            self.messages.append(message)

    def _remember(self, message: Message, reference: str, *, at: int) -> None:
        self.messages.insert(at, message)
        self._sources[id(message)] = (message, reference)

    def _index_of(self, path: str) -> int:
        """Returns the index in `messages` for the result of the tool call at `path`.

        Results are kept in the order in which their calls began, as on replay. So the result is put
        before the results of calls that began later and ended first.
        """
        place, (scope, ordinal) = len(self.messages), scope_of(path)
        while place:
            _, reference = self._sources.get(id(self.messages[place - 1]), (None, ""))
            kind, _, other = reference.partition(":")
            if kind != "tool" or scope_of(other)[0] != scope or scope_of(other)[1] < ordinal:
                break
            place -= 1
        return place

    def _added_last(self) -> tuple[Message | str, ...]:
        """Returns the messages after the last reply, or nothing if all of them are recorded
        elsewhere."""
        known = self._stream.messages
        validate.adopt_messages(self.messages)
        if list(self.messages[: len(known)]) != list(known):
            # The conversation was rewritten, and nothing was generated from this version.
            return ()
        added = tuple(map(self._reference, self.messages[len(known) :]))
        return added if any(isinstance(each, Message) for each in added) else ()

    def _reference(self, message: Message) -> Message | str:
        """Returns a reference to a message that is already recorded in another place, or else the
        message itself."""
        known = self._sources.get(id(message))
        return validate.as_recorded(message) if known is None else known[1]


async def _run(
    rollout: "Callable[[Rollout], Awaitable[Value]]", child: Rollout, session: Session
) -> Value:
    try:
        return await contain(rollout(child))
    except Exception as error:
        # Other branches continue in the meantime. Only the failed branch knows its step.
        session.state.blame(error, child.step)
        raise
