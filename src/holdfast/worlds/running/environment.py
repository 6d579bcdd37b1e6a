"""WorldEnvironment: a world as an environment of a trajectory.

Its commands are actions of an episode: they are recorded before anyone sees their output. When the
rollout is resumed, it continues in the same world if that world is alive and every call in it was
answered. Otherwise, the newest snapshot is restored in a new world, and the later commands run
again. This is safe, because their effects were lost with the old world.
"""

import math
import os
import time
from collections.abc import Mapping, Sequence
from hashlib import sha256

import msgspec
from msgspec import Struct, structs

from holdfast.records.errors import JournalCorrupt, UsageError
from holdfast.rollout.episodes.environment import Environment, Observation, Recovery
from holdfast.rollout.replay.session import Session
from holdfast.rollout.tools.tool import Function, Tool
from holdfast.worlds.contract.spec import Mount, WorldSpec, as_spec
from holdfast.worlds.contract.world import COMMAND_SECONDS, World
from holdfast.worlds.running.cadence import Cadence
from holdfast.worlds.running.comparison import without_chance
from holdfast.worlds.running.worlds import WorldOwner, Worlds
from holdfast.worlds.tools import (
    LEEWAY_SECONDS,
    OUTPUT,
    TOOLS,
    in_persistent_shell,
    result_text,
    world_tools,
)

NO_FILES: Mapping[str, str | bytes] = {}


class WorldState(Struct, frozen=True):
    """The recorded state of a world: its spec and a snapshot."""

    spec: WorldSpec
    snapshot: str
    """The provider's handle of the snapshot."""


class WorldEnvironment(Environment):
    """A world as an environment. Give its tools to the policy, or call `step` with shell commands.

    Without `spec`, the world is that of the task (`metadata["world"]`) or, if the task names no
    world, that of the run (`--world`). Between `reset` or `restore` and the end of the attempt,
    `world` is the running world. Commands that you send to `world` directly are not recorded as
    actions.
    """

    recovery = Recovery.SNAPSHOT
    earns = False
    is_world = True
    world: World
    """The running world."""
    spec: WorldSpec

    def __init__(
        self,
        spec: WorldSpec | str | None = None,
        *,
        files: Mapping[str, str | bytes] = NO_FILES,
        tools: Sequence[str] = TOOLS,
        command_timeout: float = COMMAND_SECONDS,
        output_limit: int = OUTPUT,
        snapshot_every: int | str | None = None,
        persistent_shell: bool = False,
    ):
        """`files` maps paths to the contents of files that every new world gets. Relative paths are
        below the spec's `workdir`, or below / if it has none.

        `snapshot_every` is a number of actions, or text such as "60s" (seconds of commands) or
        "64m" (bytes written). By default, a snapshot is taken once repeating the commands since the
        last snapshot would take longer than a few snapshots.

        With `persistent_shell`, each command begins with the working folder and the exported
        variables of the previous one. Both are kept in a file of the world, so they are restored
        with its files.
        """
        self._persistent_shell = persistent_shell
        self._cadence = Cadence.of(snapshot_every)
        self._given = None if spec is None else as_spec(spec)
        self._files = {
            path: text.encode() if isinstance(text, str) else text for path, text in files.items()
        }
        self._tools = tuple(tools)
        self.mounts: tuple[Mount, ...] = ()
        """Files and folders of this machine that new worlds get, besides those of the spec."""
        self.env: Mapping[str, str] = {}
        """Variables that new worlds get, besides those of the spec. They are not recorded."""
        self.agent_seconds = math.inf
        """The most seconds that a black-box agent may work in the world."""
        self._seconds = command_timeout
        self._output = output_limit
        self.timeout = command_timeout + 2 * LEEWAY_SECONDS

    @property
    def identity(self) -> str:
        digest = sha256(msgspec.msgpack.encode(self._files, order="sorted")).hexdigest()
        shell = " with a persistent shell" if self._persistent_shell else ""
        return self.spec.identity + (f" {digest[:16]}" if self._files else "") + shell

    @property
    def tools(self) -> Sequence[Tool | Function]:
        return world_tools(
            lambda: self.world,
            names=self._tools,
            seconds=self._seconds,
            output=self._output,
            persistent_shell=self._persistent_shell,
        )

    def bind(self, session: Session, path: str) -> None:
        super().bind(session, path)
        worlds, lease = session.context.worlds, session.lease
        if not isinstance(worlds, Worlds):
            raise UsageError(f"{self.name} needs a run of an engine that has worlds")
        self._worlds = worlds
        self._owner = WorldOwner(lease, path)
        self.spec = self._given or worlds.spec_of(session.task)

    async def reset(self, *, seed: int) -> Observation:
        del seed
        spec = self._complete(self.spec)
        self.world = await self._worlds.create(self._owner, spec, cuts=self.cuts)
        for path, content in self._files.items():
            await self.world.write(os.path.join(self.spec.workdir or "/", path), content)
        return Observation("")

    async def step(self, action: str) -> Observation:
        text = in_persistent_shell(action) if self._persistent_shell else action
        result = await self.world.exec(text, timeout=self._seconds, output=self._output)
        info = {"exit_code": result.exit_code, "timed_out": result.timed_out}
        return Observation(result_text(result, self._seconds), info=info)

    async def wants_snapshot(self, actions: int, seconds: float) -> bool:
        return await self._cadence.is_due(self.world, actions=actions, seconds=seconds)

    async def snapshot(self) -> bytes:
        begun = time.monotonic()
        handle = await self._worlds.snapshot(self._owner, self.world, self.spec, self.last_action)
        await self._cadence.taken(self.world, seconds=time.monotonic() - begun)
        return msgspec.msgpack.encode(WorldState(self.spec, handle))

    async def restore(self, state: bytes) -> None:
        try:
            kept = msgspec.msgpack.decode(state, type=WorldState)
        except (msgspec.DecodeError, msgspec.ValidationError) as error:
            raise JournalCorrupt(f"the snapshot of {self.name} is damaged: {error}") from error
        spec = self._complete(kept.spec)
        self.world = await self._worlds.restore(self._owner, spec, kept.snapshot, cuts=self.cuts)

    def _complete(self, spec: WorldSpec) -> WorldSpec:
        mounts = (*spec.mounts, *self.mounts)
        return structs.replace(spec, mounts=mounts, env={**spec.env, **self.env})

    async def attach(self) -> bool:
        world = await self._worlds.attach(self._owner, self.spec, cuts=self.cuts)
        if world is not None:
            self.world = world
        return world is not None

    async def is_current(self) -> None:
        await self._worlds.is_current(self._owner, self.world)

    async def close(self) -> None:
        """Removes the world if its state is unknown. Otherwise, the world stays until its
        trajectory is finished."""
        if self.is_lost:
            await self._worlds.give_up(self._owner)

    def is_alike(self, recorded: str, now: str) -> bool:
        return without_chance(recorded) == without_chance(now)
