"""Episode: the recorded actions and answers of one environment within a trajectory.

Every answer of the environment is recorded before the rollout gets it. Replay does not call the
environment. Before the first step that is not replayed, the environment is restored as its recovery
level says (see `restore`).
"""

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any

from holdfast.records.errors import ToolSaysNo, UsageError
from holdfast.records.failure import as_exception, failure_of
from holdfast.records.step import CloseFailed, Contract, EnvironmentStepped, ToolResult
from holdfast.rollout.episodes.environment import (
    Environment,
    Observation,
    Recovery,
    answer_of,
    observation_of,
    step_of,
)
from holdfast.rollout.episodes.guarded import check_usable, identity_of, recovery_of
from holdfast.rollout.episodes.restore import EPISODE_OVER, LiveEnvironment
from holdfast.rollout.replay import divergence
from holdfast.rollout.replay.current_code import check_own_attempt
from holdfast.rollout.replay.prompt import fingerprint
from holdfast.rollout.replay.reply import Reply
from holdfast.rollout.replay.session import Session
from holdfast.rollout.threads.dedicated import OwnThread
from holdfast.rollout.threads.mailbox import Begin
from holdfast.rollout.threads.pool import begin_soon
from holdfast.rollout.tools.tool import Tool, await_result, result_text, tools_of

MAX_SEED = 2**31


class BoundTool(Tool):
    """A tool that acts in an episode's environment."""

    def __init__(self, tool: Tool, episode: "Episode"):
        self.__dict__.update(tool.__dict__)
        self.episode = episode
        self.contract = episode.contract_of(tool)

    @asynccontextmanager
    async def slot(self, arguments: dict[str, object]) -> "AsyncIterator[Begin[object]]":
        if self.is_async or self.isolated:
            async with super().slot(arguments) as begin:
                yield begin
        else:  # The environment's thread is free, because its calls run one at a time.
            async with begin_soon(lambda: self._in_its_thread(arguments)) as begin_there:
                yield begin_there

    async def _in_its_thread(self, arguments: dict[str, object]) -> object:
        if self.episode.environment.inline:
            return await await_result(self.function(**arguments))
        returned = await self.episode.thread.run(lambda: self.function(**arguments))
        return await await_result(returned)


class Episode:
    """An episode, returned by `await t.env(environment)`. Call `step`, or give `tools` to the
    policy."""

    def __init__(
        self,
        session: Session,
        environment: Environment,
        path: str,
        act: "Callable[[Episode, str], Coroutine[Any, Any, Observation]]",
    ):
        check_usable(environment)
        self.path = path
        self.environment = environment
        self.rewards: list[float] = []
        """The reward of each step."""
        self.observation = Observation("")
        """The last observation."""
        self.seconds = 0.0
        """How long the last step took when it ran, which may be in an earlier attempt."""
        self._act = act
        self._session = session
        self._live = LiveEnvironment(session, environment, path, recovery_of(environment))
        self._turn = asyncio.Lock()
        self._is_open = False
        self._closed = False
        self._tools: tuple[BoundTool, ...] = ()

    @property
    def thread(self) -> OwnThread:
        """The thread in which all blocking calls of the environment and of its tools run."""
        return self._live.guarded.thread

    @property
    def over(self) -> bool:
        return self.observation.over

    @property
    def total_reward(self) -> float:
        return sum(self.rewards)

    @property
    def tools(self) -> Sequence[Tool]:
        """The environment's tools. Their actions are part of this episode."""
        return self._tools

    def contract_of(self, tool: Tool) -> Contract:
        """Returns the contract of a tool in this episode. An interrupted call can run again if
        the environment is first restored to its state before the call, so the recovery level
        decides."""
        match self._live.level:
            case Recovery.STATELESS:
                return tool.contract
            case Recovery.RESTART:
                return Contract.RESTART
            case _:
                return Contract.IDEMPOTENT

    def check_of(self, session: Session) -> None:
        """Raises `UsageError` unless this episode belongs to `session`. Actions in an episode of
        another trajectory, or of an earlier attempt, would be recorded in the wrong place."""
        if self._session is not session:
            owner = "an earlier attempt" if self._session.name == session.name else None
            raise UsageError(
                f"the episode of {self.environment.name} that is used in the rollout of "
                f"{session.name} is one of {owner or self._session.name}; open one with t.env"
            )

    # --- what a rollout does

    def step(self, action: str) -> "Coroutine[Any, Any, Observation]":
        """Does `action` and returns the environment's answer, which is durable when it is
        returned."""
        return self._act(self, action)

    async def open(self, seed: int | None) -> None:
        session, environment = self._session, self.environment
        if seed is not None and (isinstance(seed, bool) or not hasattr(seed, "__index__")):
            raise UsageError(f"a seed is a whole number, not {seed!r:.200}")
        environment.bind(session, self.path)
        session.episodes.add(self)
        await self._live.guarded.prepare()
        offered = tools_of(environment.tools, where=f"{environment.name}.tools")
        self._tools = tuple(BoundTool(tool, self) for tool in offered)
        self._live.tools = self._tools
        seed_text = "" if seed is None else str(seed)
        identity = identity_of(environment)
        mark = fingerprint(environment.name.encode(), identity.encode(), seed_text.encode())
        step = await session.match(
            self.path,
            EnvironmentStepped,
            mark,
            lambda recorded: divergence.of_environment(recorded, f"{environment.name} opened"),
        )
        if step is None:
            self._live.seed = self._new_seed() if seed is None else seed
            started = session.clock.elapsed()
            seen = await self._live.begin()
            step = self._step(seen, self.path, str(self._live.seed), mark, started)
            await session.log.append(step)
        self._live.seed = int(step.action)
        self._is_open = True
        self._observe(step)

    async def act(self, path: str, action: str) -> Observation:
        """Does `action` as the step at `path`. Returns the environment's answer."""
        if isinstance(action, Reply):
            raise UsageError("an action is text: reply.text")
        if not isinstance(action, str):
            raise UsageError(f"an action is text, not {type(action).__name__}: {action!r:.200}")
        action = result_text(action)
        mark = fingerprint(self.path.encode(), action.encode())
        if self.over and path not in self._session.history.steps:
            name = self.environment.name
            raise UsageError(f"the episode of {name} is over; `episode.over` says so")
        async with self._turn:
            step = await self._session.match(
                path,
                EnvironmentStepped,
                mark,
                lambda recorded: divergence.of_environment(recorded, f"action {action!r}"),
            )
            if step is None and self.over:
                # While this step waited for its turn, the previous one ended the episode.
                rejected = Observation(EPISODE_OVER, error=ToolSaysNo.__name__)
                step = self._step(rejected, path, action, mark, self._session.clock.elapsed())
                await self._session.log.append(step)
                self._live.mark_done(path)
            elif step is None:
                step = await self._do(path, action, mark)
            if step.observation == EPISODE_OVER and step.error:
                return observation_of(step)
            self._observe(step)
            self.rewards.append(step.reward)
            return self.observation

    async def _do(self, path: str, action: str, mark: bytes) -> EnvironmentStepped:
        await self._bring_back()
        await self._live.enter(path)
        started = self._session.clock.elapsed()
        try:
            seen = await self._live.step(path, action)
            step = self._step(seen, path, action, mark, started)
            await self._session.log.append(step)
        except BaseException:
            self._live.mark_lost()
            raise
        self._live.mark_done(path)
        return step

    def _step(
        self, seen: Observation, path: str, action: str, mark: bytes, started: float
    ) -> EnvironmentStepped:
        taken = self._session.clock.elapsed() - started
        return step_of(
            seen, path=path, fingerprint=mark, action=action, episode=self.path, seconds=taken
        )

    async def _bring_back(self) -> None:
        if self._closed:
            raise UsageError(f"the episode of {self.environment.name} was closed")
        await self._live.catch_up()

    @asynccontextmanager
    async def acting(self, path: str) -> "AsyncIterator[None]":
        """Keeps other actions of this episode waiting while a tool call at `path` runs and until
        its result is recorded."""
        async with self._turn:
            if self.over:
                raise ToolSaysNo(EPISODE_OVER)
            await self._bring_back()
            try:
                yield
            except BaseException:
                self._live.mark_lost()
                raise
            self._live.mark_done(path)

    def add_result(self, result: ToolResult) -> None:
        """Adds the reward of a tool call to the episode, and notes whether the call ended the
        episode. Called both live and on replay."""
        if result.reward is not None:
            self.rewards.append(result.reward)
            self.observation = answer_of(result)

    async def close(self) -> None:
        """Closes the environment. If the environment's `close` raises an error, the error is
        recorded but does not fail the attempt."""
        check_own_attempt(self._session)
        if self._closed:
            return
        self._closed = True
        if self._live.guarded.opened:
            try:
                await self._live.guarded.close()
            except Exception as error:
                failure = failure_of(as_exception(error), step=self.path, phase="close")
                now = self._session.clock.now()
                self._session.state.closing_records.append(CloseFailed(self.path, failure, now))
        self.thread.stop()

    async def __aenter__(self) -> "Episode":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # --- what the session does

    async def revive(self) -> None:
        """Restores the environment if its recovery level is "replay" or "restart", so that a
        failure shows at once. Called before the first step of the attempt that is not replayed."""
        is_checked = self._live.level in (Recovery.REPLAY, Recovery.RESTART)
        if is_checked and self._is_open and not self.over and not self._closed:
            await self._live.catch_up()

    async def keep(self) -> None:
        """Takes a snapshot of the environment if needed. Called between turns."""
        if self._is_open and not self.over and not self._closed:
            async with self._turn:
                await self._live.keep()

    def _new_seed(self) -> int:
        seed = self._session.seed_at(self.path)
        return secrets.randbelow(MAX_SEED) if seed is None else seed % MAX_SEED

    def _observe(self, step: EnvironmentStepped) -> None:
        self.observation = observation_of(step)
        self.seconds = step.seconds
