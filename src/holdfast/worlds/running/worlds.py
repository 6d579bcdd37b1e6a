"""Worlds: makes, finds and removes the worlds of one run in this process."""

from secrets import token_hex

from msgspec import Struct

from holdfast.records.errors import UsageError
from holdfast.records.task import Task
from holdfast.worlds.contract.spec import WorldSpec, spec_of
from holdfast.worlds.contract.world import Progress, World, WorldLabel, no_progress
from holdfast.worlds.running.providers import Providers


class WorldOwner(Struct, frozen=True):
    """The episode to which a world belongs."""

    trajectory: int
    epoch: int
    key: str
    """The trajectory's name."""
    episode: str
    """The path of the episode's opening."""


class Worlds:
    """The worlds of one run. An engine makes it, and closes it after the run."""

    def __init__(self, run: str, default: WorldSpec | None = None):
        """`default` is the world of tasks that name none (`--world`)."""
        self.default = default
        self._run = run
        self._providers = Providers()

    def spec_of(self, task: Task) -> WorldSpec:
        """Returns what the task's world has to be."""
        spec = spec_of(task) or self.default
        if spec is None:
            raise UsageError(
                f"task {task.id} names no world, and the run has none: give --world, or "
                "WorldEnvironment(SPEC)"
            )
        return spec

    async def prepare(self, spec: WorldSpec, *, progress: Progress = no_progress) -> None:
        """Checks that there can be such a world, and pulls or builds its image."""
        await self._providers.of(spec.provider).prepare(spec, progress=progress)

    async def create(self, owner: WorldOwner, spec: WorldSpec) -> World:
        """Returns a new world for the episode. Its earlier worlds are given up."""
        await self.prepare(spec)
        return await self._providers.of(spec.provider).create(spec, self._label(owner))

    async def restore(self, owner: WorldOwner, spec: WorldSpec, snapshot: str) -> World:
        """Returns a new world with the files of a snapshot. The episode's earlier worlds are given
        up."""
        provider = self._providers.of(spec.provider)
        await provider.check(spec)
        return await provider.restore(snapshot, spec, self._label(owner))

    async def attach(self, owner: WorldOwner) -> World | None:
        """Returns the episode's last world if it is alive."""
        del owner
        return None

    def _label(self, owner: WorldOwner) -> WorldLabel:
        return WorldLabel(
            world=token_hex(8), run=self._run, trajectory=owner.key, epoch=owner.epoch
        )

    async def close(self) -> None:
        await self._providers.close()
