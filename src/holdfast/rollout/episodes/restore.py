"""LiveEnvironment: restores an environment to the state that its records describe.

The journal records the actions in the environment and its answers. To bring the environment back,
Holdfast restores it from a snapshot or resets it. Then Holdfast does the later actions again, and
compares each answer with the recorded answer. If an answer differs, the record no longer describes
this environment. Then that step and the later steps become history, the rollout starts again, and
it runs live from that step on (I9).
"""

import asyncio
from collections.abc import Sequence

from msgspec import structs

from holdfast.records.errors import Diverged, EnvironmentBroken, JournalCorrupt, ToolSaysNo
from holdfast.records.history import CAME_BACK_DIFFERENT, EpisodeLog
from holdfast.records.step import (
    Entered,
    EnvironmentStepped,
    Snapshotted,
    ToolIntent,
    ToolResult,
    is_cut_by,
)
from holdfast.rollout.episodes.environment import (
    Environment,
    Observation,
    Recovery,
    SnapshotGone,
    answer_of,
    check_observation,
    observation_of,
)
from holdfast.rollout.episodes.guarded import GuardedEnvironment
from holdfast.rollout.replay import divergence
from holdfast.rollout.replay.current_code import StepScope
from holdfast.rollout.replay.run_context import OnDivergence
from holdfast.rollout.replay.session import Session
from holdfast.rollout.tools.tool import KEY_PARAMETER, Tool

MAX_REWINDS = 3
"""How often a rollout may start again, without progress in between, because a restored environment
gave other answers than the recorded ones."""
EPISODE_OVER = "Nothing happened: the episode is over."


class LiveEnvironment:
    """An environment, and the recorded actions that it has done."""

    def __init__(self, session: Session, environment: Environment, path: str, level: Recovery):
        self.guarded = GuardedEnvironment(session.state, environment)
        self.level = level
        self.seed = 0
        self.tools: Sequence[Tool] = ()
        self._path = path
        self._session = session
        self._environment = environment
        self._is_live = False
        self._is_lost = False
        self._done: list[str] = []
        """The actions that the environment has been through."""
        self._kept = 0
        """The number of actions before the last snapshot."""
        self._way_back = asyncio.Lock()
        self._cuts = 0
        """How often the record had been cut when the environment last agreed with it."""

    async def begin(self) -> Observation:
        """Resets the environment for the first time in an episode, and returns the first
        observation."""
        await self.enter(self._path)
        seen = await self._reset()
        self._is_live = True
        await self.guarded.is_current()
        return seen

    async def step(self, path: str, action: str) -> Observation:
        async with StepScope(self._session, path, in_environment=True):
            return await self.guarded.step(action)

    async def _reset(self) -> Observation:
        self._environment.cuts = self._recorded.cuts
        async with StepScope(self._session, self._path, in_environment=True):
            return await self.guarded.reset(self.seed)

    def mark_done(self, path: str) -> None:
        """Notes that the action at `path` is done and recorded."""
        self._done.append(path)

    def mark_lost(self) -> None:
        """Notes that an action was interrupted, so that the environment's state is unknown."""
        self._is_lost = self.level is not Recovery.STATELESS
        self._environment.is_lost = self._is_lost

    # --- snapshots

    async def keep(self) -> None:
        """Takes a durable snapshot if the environment recovers by snapshots and has done actions
        since the last one."""
        if self.level is not Recovery.SNAPSHOT or not self._is_live or self._is_lost:
            return
        if len(self._done) == self._kept or self._done != self._recorded.actions:
            return
        since = self._done[self._kept :]
        seconds = sum(self._seconds_of(path) for path in since)
        if not await self._environment.wants_snapshot(len(since), seconds):
            return
        self._environment.last_action = self._done[-1]
        state = await self.guarded.snapshot()
        digest = await self._session.blobs.put_blob(state)
        self._kept = len(self._done)
        await self._session.log.append(Snapshotted(self._path, self._kept, digest))

    def _seconds_of(self, path: str) -> float:
        history = self._session.history
        step = history.steps[path]
        return (
            step.seconds if isinstance(step, EnvironmentStepped) else history.results[path].seconds
        )

    # --- the way back

    async def catch_up(self) -> None:
        """Restores the environment to the state after all recorded actions, if it is in another
        state."""
        if self._is_lost:
            raise self._session.state.fail(
                EnvironmentBroken(
                    f"a call of {self._environment.name} was cut off half-way: its state is unknown"
                )
            )
        recorded = self._recorded
        if (
            self._is_live
            and len(recorded.actions) == len(self._done)
            and recorded.cuts == self._cuts
        ):
            return
        async with self._way_back:
            cuts = recorded.cuts  # Another branch may cut more steps while this one waits.
            await self._catch_up(recorded)
            self._cuts = cuts

    @property
    def _recorded(self) -> EpisodeLog:
        return self._session.history.worlds.get(self._path, EpisodeLog())

    async def _catch_up(self, recorded: EpisodeLog) -> None:
        if self._is_live and recorded.actions == self._done:
            return
        is_answered = self._environment.is_world and self._session.history.is_answered
        is_counted = await self.enter(self._path)
        if not self._is_live and is_answered and await self.guarded.attach(recorded.cuts):
            self._is_live, self._done = True, list(recorded.actions)
            self._kept = recorded.snapshots[-1][0] if recorded.snapshots else 0
        if not self._is_live or recorded.actions[: len(self._done)] != self._done:
            await self._begin_again(recorded)
        for path in recorded.actions[len(self._done) :]:
            await self._do_again(path)
            self._done.append(path)
        await self.guarded.is_current()
        if is_counted:
            await self._session.log.append(Entered(self._path, left=True))

    async def enter(self, path: str) -> bool:
        """Prepares for a call of the environment in the step at `path`. Returns whether it has
        recorded the beginning of the call.

        It makes this record if an earlier process already got this far, so that calls that kill the
        process are counted. For a world it always makes the record, so that a later process knows
        whether a call was running.
        """
        session = self._session
        session.check_alive(path, self._environment.name)
        if is_counted := session.log.is_on_old_ground or self._environment.is_world:
            await session.log.append(Entered(path))
        return is_counted

    async def _begin_again(self, recorded: EpisodeLog) -> None:
        match self.level:
            case Recovery.RESTART:
                self._session.log.check_own(
                    self._path, f"{self._environment.name} cannot come back (restart)"
                )
                raise await self._session.log.rewind(
                    ["0"], f"{self._environment.name} cannot come back and has to start anew", ""
                )
            case Recovery.STATELESS:
                await self._reset()
                self._done = list(recorded.actions)
            case Recovery.SNAPSHOT if await self._restore_snapshot(recorded):
                pass
            case _:
                await self._compare(self._path, await self._reset())
                self._done = []
        self._is_live = True

    async def _restore_snapshot(self, recorded: EpisodeLog) -> bool:
        """Restores the newest readable snapshot and returns True, or returns False if no snapshot
        is readable. Every damaged snapshot is skipped, and then more actions have to be done again.
        """
        self._environment.cuts = recorded.cuts
        for applied, digest in reversed(recorded.snapshots):
            try:
                await self.guarded.restore(await self._session.blobs.get_blob(digest))
            except (JournalCorrupt, SnapshotGone):
                continue
            self._kept, self._done = applied, recorded.actions[:applied]
            return True
        return False

    async def _do_again(self, path: str) -> None:
        history = self._session.history
        step = history.steps[path]
        if isinstance(step, EnvironmentStepped):
            if not (step.error and step.observation == EPISODE_OVER):
                await self._compare(path, await self.step(path, step.action))
        elif isinstance(step, ToolIntent) and history.results[path].content != EPISODE_OVER:
            await self._compare(path, await self._call_again(step))

    async def _call_again(self, intent: ToolIntent) -> Observation:
        tool = next((tool for tool in self.tools if tool.name == intent.name), None)
        if tool is None:
            return Observation(f"there is no tool {intent.name} any more", error="UnknownTool")
        try:
            arguments = tool.bind(intent.arguments)
            if tool.wants_key:
                arguments[KEY_PARAMETER] = intent.idempotency_key
            async with (
                tool.slot(arguments) as begin,
                asyncio.timeout(tool.caller_timeout),
                StepScope(self._session, intent.path, in_environment=True),
            ):
                observation = await begin()
            if isinstance(observation, Observation):
                return structs.replace(
                    check_observation(observation), text=tool.render_result(observation.text)
                )
            return Observation(tool.render_result(observation))
        except ToolSaysNo as no:
            return Observation(tool.render_result(str(no)), error=type(no).__name__)
        except Exception as error:
            raise self.guarded.break_attempt(f"tool {tool.name}", error) from error

    async def _compare(self, path: str, observation: Observation) -> None:
        recorded = self._recorded_at(path)
        if _shape(observation) == _shape(recorded) and self._environment.is_alike(
            recorded.text, observation.text
        ):
            return
        session, name = self._session, self._environment.name
        difference = divergence.of_observations(_describe(recorded), _describe(observation))
        where = f"{name}, at step {path}: {difference}"
        if session.context.on_divergence is OnDivergence.FAIL:
            raise session.state.fail(Diverged(f"{CAME_BACK_DIFFERENT}: {where}"))
        session.log.check_own(path, f"{CAME_BACK_DIFFERENT}: {where}")
        if session.history.rewinds >= MAX_REWINDS:
            raise session.state.fail(
                EnvironmentBroken(
                    f"{name} came back different {MAX_REWINDS + 1} times: the same seed and "
                    "actions do not give the same answers; declare another recovery level"
                )
            )
        raise await session.log.rewind(self._from(path), CAME_BACK_DIFFERENT, where)

    def _recorded_at(self, path: str) -> Observation:
        history = self._session.history
        step = history.steps[path]
        if isinstance(step, EnvironmentStepped):
            return observation_of(step)
        result: ToolResult = history.results[path]
        return answer_of(result)

    def _from(self, path: str) -> list[str]:
        """Returns the paths of the steps to cut, so that the step at `path` and all later steps of
        this episode become history."""
        actions = self._recorded.actions
        cuts = [path]
        # If the opening is cut, everything that depends on it is cut, too (see `History.cut`).
        for action in actions[actions.index(path) :] if path != self._path else ():
            if not any(is_cut_by(action, cut) for cut in cuts):
                cuts.append(action)
        return cuts


def _shape(seen: Observation) -> tuple[object, ...]:
    return seen.reward, seen.done, seen.truncated, seen.error


def _describe(seen: Observation) -> str:
    ends = (" done" if seen.done else "") + (" truncated" if seen.truncated else "")
    return f"{seen.error} {seen.text}\nreward {seen.reward:g}{ends}".strip()
