"""The folder that an agent finds when it is started again.

The agent's calls are replayed in any case, and so are the tools that it calls through the gateway.
The agent's own actions are not recorded. A world decides whether the agent repeats these actions or
finds their results. If the agent has its own workspace (`AgentWorkspace`), the folder is restored
to its beginning or to its state at a recorded call, and the agent does the rest. Everything that
was recorded until then stays valid, whether or not the agent asks for it again.
"""

from collections.abc import Callable, Coroutine
from enum import StrEnum
from typing import Any

from msgspec import Struct

from holdfast.environments.workspace import Workspace
from holdfast.records.errors import JournalCorrupt, Truncated, UsageError
from holdfast.records.history import History
from holdfast.records.step import Entered, EnvironmentStepped, Snapshotted
from holdfast.records.task import Task
from holdfast.records.trajectory import Truncation
from holdfast.rollout.episodes.environment import (
    Observation,
    observation_of,
    step_of,
)
from holdfast.rollout.episodes.episode import Episode
from holdfast.rollout.episodes.guarded import identity_of
from holdfast.rollout.processors.agent import task_function
from holdfast.rollout.replay import divergence
from holdfast.rollout.replay.prompt import fingerprint
from holdfast.rollout.replay.session import Session
from holdfast.worlds.running.environment import WorldEnvironment


class Restore(StrEnum):
    """The state of a workspace when its agent is started again."""

    START = "start"
    """The state at the beginning. It is for agents that start over: while their calls are replayed,
    they repeat their own actions."""
    LATEST = "latest"
    """The state at the latest call. It is for agents that keep their progress in their home."""


class FreshWorld(Struct, frozen=True):
    """An empty folder, in which the agent runs its tools again. It has the same path in each
    attempt of a trajectory. This world is the default."""

    confined: bool = True
    """Whether the agent is kept from reading the variables and the memory of other processes (see
    `confinement`). Set it to False if the agent needs a right that this removes, such as `sudo`."""

    @property
    def identity(self) -> str:
        return ""


class WorkspaceWorld(Struct, frozen=True):
    """A workspace, which is the agent's home and working folder, or a container.

    Its files at the end are durable, and can be judged (`finish`). With `restore="latest"`, changed
    files are also made durable each time that the agent makes a new call.
    """

    workspace: Callable[[Task], Workspace | WorldEnvironment]
    """Makes a new workspace, or a new `WorldEnvironment`, for a task. It is called for each
    attempt."""
    restore: Restore | str = Restore.START

    def __post_init__(self) -> None:
        task_function(self.workspace, what="workspace", makes="a Workspace or a WorldEnvironment")
        if self.restore not in list(Restore):
            known = " and ".join(Restore)
            raise UsageError(f"restore={self.restore!r}: there are {known}")

    @property
    def identity(self) -> str:
        return f"workspace {Restore(self.restore)}"


World = FreshWorld | WorkspaceWorld
FRESH = FreshWorld()


PATH = "0"
MAX_TRIES = 5
"""The most tries to read a folder whose files vanish while they are read."""
_VANISHED = (FileNotFoundError, NotADirectoryError, IsADirectoryError)


class AgentWorkspace(Episode):
    """The workspace of an agent, which is always the first episode of its trajectory."""

    def __init__(
        self,
        session: Session,
        workspace: Workspace | WorldEnvironment,
        *,
        restore: Restore,
        act: Callable[[Episode, str], Coroutine[Any, Any, Observation]],
    ):
        super().__init__(session, workspace, PATH, act)
        self.workspace = workspace
        self.is_resumed = False
        """Whether the folder was restored to its state at a later call, instead of its first
        state."""
        self.steps_before: frozenset[str] = frozenset()
        """The steps that were recorded before the restored state. Empty if the folder has its first
        state."""
        self._restore = restore

    async def open(self, seed: int | None = None) -> None:
        """Opens the workspace. Unlike other episodes, it is opened at once, even on replay, because
        the agent needs it."""
        session, workspace = self._session, self.workspace
        workspace.bind(session, PATH)
        session.episodes.add(self)
        mark = fingerprint(workspace.name.encode(), identity_of(workspace).encode(), b"agent")
        step = await session.match(
            PATH,
            EnvironmentStepped,
            mark,
            lambda recorded: divergence.of_environment(recorded, "an agent's workspace"),
        )
        started = session.clock.elapsed()
        is_counted = await self._live.enter(PATH)
        if step is None:
            seen = await self._live.guarded.reset(0)
            taken = session.clock.elapsed() - started
            step = step_of(
                seen, path=PATH, fingerprint=mark, action="0", episode=PATH, seconds=taken
            )
            await session.log.append(step)
        elif not await self._restore_latest():
            await self._live.guarded.reset(0)
        if is_counted:
            await session.log.append(Entered(PATH, left=True))
        self._is_open = True
        self.observation = observation_of(step)

    async def _restore_latest(self) -> bool:
        """Restores the latest snapshot and returns whether it could. If the snapshot is damaged,
        the agent starts over, and its calls are replayed."""
        session = self._session
        world = session.history.worlds[PATH]
        if self._restore is not Restore.LATEST or not world.snapshots:
            return False
        _, digest = world.snapshots[-1]
        try:
            await self._live.guarded.restore(await session.blobs.get_blob(digest))
        except JournalCorrupt:
            return False
        self.is_resumed = True
        self.steps_before = _steps_until(session.history, world.last_step)
        for path in self.steps_before:
            session.log.keep(path)
        return True

    async def keep(self) -> None:
        """Makes the folder durable before a new sample, if the latest state is to be restored."""
        if self._restore is Restore.LATEST:
            await self.take()

    async def take(self) -> None:
        """Makes the present folder durable if it has changed."""
        session = self._session
        async with self._turn:
            digest = await session.blobs.put_blob(await self._state())
            world = session.history.worlds[PATH]
            if not world.snapshots or world.snapshots[-1][1] != digest:
                await session.log.append(Snapshotted(PATH, len(world.actions), digest))

    async def _state(self) -> bytes:
        """Returns a snapshot. The agent may change the folder at the same time, so a failed
        snapshot is tried again."""
        workspace = self.workspace
        if isinstance(workspace, WorldEnvironment):
            workspace.last_action = next(reversed(self._session.history.steps))
            return await self._live.guarded.snapshot()
        for _ in range(MAX_TRIES - 1):
            workspace.touched()
            if not await workspace.check_room():
                raise Truncated(Truncation.ENVIRONMENT_LIMIT)
            try:
                return await workspace.snapshot()
            except _VANISHED:
                continue
        workspace.touched()
        return await self._live.guarded.snapshot()

    async def revive(self) -> None:
        """Does nothing, because the workspace was opened at once."""

    async def _bring_back(self) -> None:
        if self._closed:
            raise UsageError("the agent's workspace was closed")
        if isinstance(self.workspace, Workspace):
            self.workspace.touched()


def _steps_until(history: History, last: str) -> frozenset[str]:
    """Returns the recorded steps up to `last`, or all steps if `last` is not among them."""
    paths: list[str] = []
    for path in history.steps:
        paths.append(path)
        if path == last:
            break
    return frozenset(paths)
