"""Episode: one environment's durable life within a trajectory.

Every answer of the environment is recorded before anyone sees it. On replay nothing of the
environment is called: it is brought back, by its recovery level, when the rollout goes live again.
What is done again on the way is compared with the record; where they differ, the record no longer
describes this world, and the steps from there on become history (I9).
"""

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import msgspec
from msgspec import structs

from holdfast.records.errors import (
    Diverged,
    EnvironmentBroken,
    Rewound,
    ToolSaysNo,
    UsageError,
)
from holdfast.records.failure import failure_of
from holdfast.records.history import CAME_BACK_DIFFERENT, World
from holdfast.records.step import (
    CloseFailed,
    Contract,
    EnvironmentStepped,
    Snapshotted,
    ToolIntent,
    ToolResult,
    is_cut_by,
)
from holdfast.rollout import difference
from holdfast.rollout.containment import as_exception, contained
from holdfast.rollout.environment import Environment, Observation, Recovery, checked
from holdfast.rollout.guarded import GuardedEnvironment, recovery_of
from holdfast.rollout.own_thread import OwnThread
from holdfast.rollout.prompt import fingerprint
from holdfast.rollout.session import OnDivergence, Session
from holdfast.rollout.tool import KEY_PARAMETER, Tool, as_tool

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

MAX_REWINDS = 3
"""How often a trajectory may begin again because its environment came back different."""
MAX_SEED = 2**31


class BoundTool(Tool):
    """A tool that acts in an episode's environment."""

    def __init__(self, tool: Tool, episode: "Episode"):
        self.__dict__.update(tool.__dict__)
        self.episode = episode
        self.contract = episode.contract_of(tool)

    async def invoke(self, arguments: dict[str, object]) -> object:
        if self.is_async or self.isolated:
            return await super().invoke(arguments)
        found = await self.episode.thread.run(lambda: self.function(**arguments))
        return await contained(found) if isinstance(found, Awaitable) else found


class Episode:
    """Made by `await t.env(environment)`. Use `step`, or give `tools` to the policy."""

    def __init__(
        self,
        session: Session,
        environment: Environment,
        path: str,
        act: "Callable[[Episode, str], Awaitable[Observation]]",
    ):
        self.path = path
        self.environment = environment
        self.rewards: list[float] = []
        """The reward of each step."""
        self.observation = Observation("")
        """The last one."""
        self.seconds = 0.0
        """How long the last step took, live or when it was recorded."""
        self._act = act
        self._session = session
        self._recovery = recovery_of(environment)
        self._seed = 0
        self._guarded = GuardedEnvironment(session, environment)
        self._turn = asyncio.Lock()
        self._is_live = False
        self._actions: list[str] = []
        """What the live environment has been through."""
        self._kept = 0
        """After how many actions the last snapshot was taken."""
        self._closed = False
        self._tools: tuple[BoundTool, ...] = ()

    @property
    def thread(self) -> OwnThread:
        """Where the environment's blocking calls run, those of its tools, too."""
        return self._guarded.thread

    @property
    def over(self) -> bool:
        return self.observation.over

    @property
    def total_reward(self) -> float:
        return sum(self.rewards)

    @property
    def tools(self) -> Sequence[Tool]:
        """The environment's tools: what they do is part of this episode."""
        return self._tools

    def contract_of(self, tool: Tool) -> Contract:
        """An interrupted call happened in a world that is put back to before it."""
        match self._recovery:
            case Recovery.STATELESS:
                return tool.contract
            case Recovery.RESTART:
                return Contract.RESTART
            case _:
                return Contract.IDEMPOTENT

    # --- what a rollout does

    async def step(self, action: str) -> Observation:
        """Does `action`, and returns what the environment answers; durable when it returns."""
        return await self._act(self, action)

    async def open(self, seed: int | None) -> None:
        session, environment = self._session, self.environment
        if getattr(environment, "blobs", None) is not None:
            raise UsageError(
                f"{environment.name} is in use already: make a new instance for each trajectory"
            )
        environment.blobs = session.blobs
        await self._guarded.prepare()
        self._tools = tuple(BoundTool(as_tool(one), self) for one in environment.tools)
        asked = "" if seed is None else str(seed)
        mark = fingerprint(environment.name.encode(), environment.identity.encode(), asked.encode())
        step = await session.match(
            self.path,
            EnvironmentStepped,
            mark,
            lambda recorded: difference.of_environment(recorded, f"{environment.name} opened"),
        )
        session.episodes.append(self)
        if step is None:
            self._seed = self._new_seed() if seed is None else seed
            started = session.clock.elapsed()
            seen = await self._guarded.reset(self._seed)
            self._is_live = True
            taken = session.clock.elapsed() - started
            step = _recorded(self.path, mark, str(self._seed), seen, self.path, seconds=taken)
            await session.append(step)
        self._seed = int(step.action)
        self._see(step)

    async def act(self, path: str, action: str) -> Observation:
        """What the environment answers to `action`, the step at `path`."""
        if not isinstance(action, str):
            raise UsageError(f"an action is text, not {type(action).__name__}: {action!r}")
        session = self._session
        mark = fingerprint(self.path.encode(), action.encode())
        async with self._turn:
            step = await session.match(
                path,
                EnvironmentStepped,
                mark,
                lambda recorded: difference.of_environment(recorded, f"action {action!r}"),
            )
            if step is None:
                self._check_open()
                await self._come_back()
                started = session.clock.elapsed()
                seen = await self._guarded.step(action)
                taken = session.clock.elapsed() - started
                step = _recorded(path, mark, action, seen, self.path, seconds=taken)
                await session.append(step)
                self._actions.append(path)
            self._see(step)
            self.rewards.append(step.reward)
            return self.observation

    def _check_open(self) -> None:
        name = self.environment.name
        if self.over:
            raise UsageError(f"the episode of {name} is over; `episode.over` says so")
        if self._closed:
            raise UsageError(f"the episode of {name} was closed")

    @asynccontextmanager
    async def acting(self, path: str) -> "AsyncIterator[None]":
        """Held while a bound tool runs at `path`, until its result is recorded."""
        async with self._turn:
            self._check_open()
            await self._come_back()
            yield
            self._actions.append(path)

    def heard(self, result: ToolResult) -> None:
        """What a tool call earned, and whether it ended the episode; live or replayed."""
        if result.reward is not None:
            self.rewards.append(result.reward)
            self.observation = _answer(result)

    async def close(self) -> None:
        """Lets go of the environment; what its closing raises is recorded, and harms nothing."""
        if self._closed:
            return
        self._closed = True
        if self._guarded.opened:
            try:
                await self._guarded.close()
            except Exception as error:
                failure = failure_of(as_exception(error), step=self.path, phase="close")
                now = self._session.clock.now()
                self._session.afterwards.append(CloseFailed(self.path, failure, now))
        self._guarded.thread.stop()

    async def __aenter__(self) -> "Episode":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # --- coming back

    async def revive(self) -> None:
        """Called when the attempt goes live: what cannot come back is found before more is done."""
        if self._recovery in (Recovery.REPLAY, Recovery.RESTART) and not self.over:
            await self._come_back()

    async def keep(self) -> None:
        """Between turns: makes the state durable, if it is new."""
        if self._recovery is not Recovery.SNAPSHOT or self.over or self._closed:
            return
        async with self._turn:
            if not self._is_live or len(self._actions) == self._kept:
                return
            state = await self._guarded.snapshot()
            digest = await self._session.blobs.put_blob(state)
            self._kept = len(self._actions)
            await self._session.append(Snapshotted(self.path, self._kept, digest))

    async def _come_back(self) -> None:
        world = self._session.history.worlds.get(self.path, World())
        if self._is_live and world.actions == self._actions:
            return
        if not self._is_live or world.actions[: len(self._actions)] != self._actions:
            await self._begin_again(world)
        done = len(self._actions)
        for path in world.actions[done:]:
            await self._do_again(path)
            self._actions.append(path)

    async def _begin_again(self, world: World) -> None:
        match self._recovery:
            case Recovery.RESTART:
                raise await self._session.rewind(
                    ["0"], f"{self.environment.name} cannot come back and has to start anew", ""
                )
            case Recovery.STATELESS:
                await self._guarded.reset(self._seed)
                self._actions = list(world.actions)
            case Recovery.SNAPSHOT if world.snapshots:
                self._kept, digest = world.snapshots[-1]
                state = await self._session.blobs.get_blob(digest)
                await self._guarded.restore(state)
                self._actions = world.actions[: self._kept]
            case _:
                await self._compare(self.path, await self._guarded.reset(self._seed))
                self._actions = []
        self._is_live = True

    async def _do_again(self, path: str) -> None:
        step = self._session.history.steps[path]
        if isinstance(step, EnvironmentStepped):
            await self._compare(path, await self._guarded.step(step.action))
        elif isinstance(step, ToolIntent):
            await self._compare(path, await self._tool_again(step))

    async def _tool_again(self, intent: ToolIntent) -> Observation:
        tool = next((one for one in self._tools if one.name == intent.name), None)
        if tool is None:
            return Observation(f"there is no tool {intent.name} any more", error="UnknownTool")
        try:
            arguments = tool.bind(intent.arguments)
            if tool.wants_key:
                arguments[KEY_PARAMETER] = intent.idempotency_key
            async with asyncio.timeout(tool.caller_timeout):
                found = await tool.invoke(arguments)
            if isinstance(found, Observation):
                return structs.replace(checked(found), text=tool.shown(found.text))
            return Observation(tool.shown(found))
        except ToolSaysNo as no:
            return Observation(tool.shown(str(no)), error=type(no).__name__)
        except Exception as error:
            raise self._guarded.broke(f"tool {tool.name}", error) from error

    async def _compare(self, path: str, found: Observation) -> None:
        recorded = self._recorded_at(path)
        if _shape(found) == _shape(recorded):
            return
        session = self._session
        words = difference.of_observations(_words(recorded), _words(found))
        where = f"{self.environment.name}, at step {path}: {words}"
        if session.on_divergence is OnDivergence.FAIL:
            raise session.failed(Diverged(f"{CAME_BACK_DIFFERENT}: {where}"))
        if session.history.rewinds >= MAX_REWINDS:
            raise session.failed(
                EnvironmentBroken(
                    f"{self.environment.name} came back different {MAX_REWINDS + 1} times: the "
                    "same seed and actions do not give the same answers; declare "
                    "recovery='snapshot' or 'restart'"
                )
            )
        raise await session.rewind(self._from(path), CAME_BACK_DIFFERENT, where)

    def _recorded_at(self, path: str) -> Observation:
        history = self._session.history
        step = history.steps[path]
        if isinstance(step, EnvironmentStepped):
            return _observation(step)
        return _answer(history.results[path])

    def _from(self, path: str) -> list[str]:
        """The step at `path` and all that was done in this world after it."""
        if path == self.path:
            return [path]
        actions = self._session.history.worlds[self.path].actions
        cuts: list[str] = []
        for one in actions[actions.index(path) :]:
            if not any(is_cut_by(one, cut) for cut in cuts):
                cuts.append(one)
        return cuts

    def _new_seed(self) -> int:
        seed = self._session.seed_at(self.path)
        return secrets.randbelow(MAX_SEED) if seed is None else seed % MAX_SEED

    def _see(self, step: EnvironmentStepped) -> None:
        self.observation = _observation(step)
        self.seconds = step.seconds


def _recorded(
    path: str, mark: bytes, action: str, seen: Observation, environment: str, *, seconds: float
) -> EnvironmentStepped:
    return EnvironmentStepped(
        path=path,
        fingerprint=mark,
        action=action,
        observation=seen.text,
        reward=seen.reward,
        done=seen.done,
        environment=environment,
        truncated=seen.truncated,
        error=seen.error,
        info=msgspec.msgpack.encode(seen.info) if seen.info else b"",
        seconds=seconds,
    )


def _observation(step: EnvironmentStepped) -> Observation:
    info = msgspec.msgpack.decode(step.info) if step.info else {}
    return Observation(
        step.observation, step.reward, step.done, step.truncated, info, step.error, step.path
    )


def _answer(result: ToolResult) -> Observation:
    reward = result.reward or 0.0
    return Observation(
        result.content, reward, result.done, result.truncated, error=result.error, path=result.path
    )


def _shape(seen: Observation) -> tuple[object, ...]:
    return seen.text, seen.reward, seen.done, seen.truncated, seen.error


def _words(seen: Observation) -> str:
    ends = (" done" if seen.done else "") + (" truncated" if seen.truncated else "")
    return f"{seen.error} {seen.text}\nreward {seen.reward:g}{ends}".strip()


__all__ = ["BoundTool", "Episode", "Rewound"]
