"""Worlds: manages the worlds of one run in this process, from the intent in the ledger to the
confirmed removal.

The ledger says that a world will be made or removed before the provider is asked. Every change
checks the owner's epoch, so a worker that lost its trajectory neither makes nor removes worlds of
that trajectory. A call that is safe to repeat is repeated while the provider is down; meanwhile no
new trajectory begins.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from secrets import token_hex
from typing import TypeVar

from msgspec import Struct

from holdfast import crashpoint
from holdfast.journal.sql.journal import Journal
from holdfast.journal.types import Lease
from holdfast.journal.worlds import WorldIntent, WorldPhase, WorldRow
from holdfast.records.errors import LeaseLost, UsageError
from holdfast.records.run import Run
from holdfast.records.task import Task
from holdfast.worlds.contract.failures import ProviderDown, WorldGone, WorldRefused
from holdfast.worlds.contract.spec import WorldSpec, spec_of
from holdfast.worlds.contract.world import (
    Progress,
    World,
    WorldLabel,
    WorldProvider,
    no_progress,
)
from holdfast.worlds.running.providers import Providers
from holdfast.worlds.running.removal import remove_leftovers, remove_row

AT_ONCE = 8
"""The most worlds that are made at the same time, by default."""
KEPT_SNAPSHOTS = 2
"""How many older snapshots are kept when a new one is taken, because the newest may be damaged."""
PATIENCE_SECONDS = 300.0
"""The most seconds for which a call waits for a provider that is down."""
FIRST_PAUSE, LONGEST_PAUSE = 0.2, 5.0
SHOW_SECONDS = 5.0
Result = TypeVar("Result")
_log = logging.getLogger("holdfast")


class WorldOwner(Struct, frozen=True):
    """The episode to which a world belongs."""

    lease: Lease
    episode: str
    """The path of the step that opened the episode."""


class Worlds:
    """Manages the worlds of one run. An engine makes this object, and closes it after the run."""

    def __init__(
        self,
        journal: Journal,
        run: Run,
        *,
        default: WorldSpec | None = None,
        wanted: Sequence[WorldSpec] = (),
        at_once: int = AT_ONCE,
        patience: float = PATIENCE_SECONDS,
        notify: Progress = no_progress,
    ):
        """`default` is the spec for tasks that name no world (`--world`). The images of `wanted`
        are prepared before the first trajectory."""
        self.default = default
        self._journal = journal
        self._run = run
        self._providers = Providers()
        self._patience = patience
        self._wanted = wanted
        self._notify = notify
        self._shown = 0.0
        self._making = asyncio.Semaphore(at_once)
        self._down: WorldProvider | None = None
        self._label = ""
        self._used = False

    def spec_of(self, task: Task) -> WorldSpec:
        """Returns the spec of the task's world. Raises `UsageError` if neither the task nor the run
        names a world."""
        spec = spec_of(task) or self.default
        if spec is None:
            raise UsageError(
                f"task {task.id} names no world, and the run has none: give --world, or "
                "WorldEnvironment(SPEC)"
            )
        return spec

    async def prepare(self) -> None:
        """Checks that the wanted worlds can be made, and pulls or builds their images. Raises
        `WorldRefused`, or `ProviderDown` for a provider that this run has never reached."""
        if not self._wanted:
            return
        known = {
            row.intent.provider for row in await self._journal.worlds(run=self._run, removed=True)
        }
        for spec in self._wanted:
            provider = self._providers.of(spec.provider)
            patience = self._patience if spec.provider in known else 0.0
            await self._patiently(provider, partial(self._prepare, spec), patience)

    async def _prepare(self, spec: WorldSpec) -> None:
        await self._providers.of(spec.provider).prepare(spec, progress=self._show)

    def _show(self, line: str) -> None:
        """Shows the progress of a pull or a build, with at most one line every few seconds."""
        now = time.monotonic()
        if now >= self._shown + SHOW_SECONDS:
            self._shown = now
            self._notify(line)

    async def ready(self) -> None:
        """Waits until no provider is down."""
        while (provider := self._down) is not None:
            await self._patiently(provider, partial(provider.worlds, world=token_hex(8)))

    # --- one episode's world

    async def create(self, owner: WorldOwner, spec: WorldSpec, *, cuts: int = 0) -> World:
        """Returns a new world for the episode. Removes the episode's earlier worlds first."""
        return await self._make(owner, spec, "", cuts)

    async def restore(
        self, owner: WorldOwner, spec: WorldSpec, snapshot: str, *, cuts: int = 0
    ) -> World:
        """Returns a new world with the files of a snapshot. Removes the episode's earlier worlds
        first."""
        return await self._make(owner, spec, snapshot, cuts)

    async def _make(self, owner: WorldOwner, spec: WorldSpec, snapshot: str, cuts: int) -> World:
        self._used = True
        await self.give_up(owner)
        provider = self._providers.of(spec.provider)
        async with self._making:
            await self._patiently(provider, lambda: self._prepare(spec))
            intent = self._intent(owner, spec, origin=snapshot, cuts=cuts)
            label = await self._label_of(owner, intent.name)
            await self._journal.plan_world(owner.lease, intent)
            crashpoint.reach("worlds.planned")
            try:
                world = await self._patiently(
                    provider,
                    lambda: (
                        provider.restore(snapshot, spec, label)
                        if snapshot
                        else provider.create(spec, label)
                    ),
                )
            except WorldRefused:
                await self._change(owner, intent.name, WorldPhase.REMOVED)
                raise
            crashpoint.reach("worlds.made")
        try:
            await self._change(owner, intent.name, WorldPhase.WANTED, world.handle)
        except LeaseLost:
            await provider.destroy(world.handle)
            raise
        return world

    async def is_current(self, owner: WorldOwner, world: World) -> None:
        """Notes that the world has the state that the record describes, so that a later attempt may
        continue in this world."""
        for row in await self._rows(owner, snapshots=False):
            if row.handle == world.handle and row.state is WorldPhase.WANTED:
                await self._change(owner, row.name, WorldPhase.READY)

    async def attach(self, owner: WorldOwner, spec: WorldSpec, *, cuts: int) -> World | None:
        """Returns the episode's last world if it is alive, its state was noted as current, and the
        record was not cut since. Otherwise returns None."""
        rows = await self._rows(owner, snapshots=False)
        if not rows or rows[-1].state is not WorldPhase.READY or rows[-1].intent.cuts != cuts:
            return None
        row, provider = rows[-1], self._providers.of(spec.provider)
        try:
            await self._patiently(provider, lambda: provider.check(spec))
            world = await self._patiently(provider, lambda: provider.attach(row.handle))
        except WorldGone:
            return None
        await self._change(owner, row.name, WorldPhase.READY)
        crashpoint.reach("worlds.attached")
        self._used = True
        return world

    async def snapshot(self, owner: WorldOwner, world: World, spec: WorldSpec, after: str) -> str:
        """Takes a new snapshot and returns its handle. Removes older snapshots first."""
        intent = self._intent(owner, spec, origin=world.handle, after=after, is_snapshot=True)
        await self._prune(owner, world)
        await self._journal.plan_world(owner.lease, intent)
        crashpoint.reach("worlds.snapshot")
        provider = self._providers.of(spec.provider)
        handle = await self._patiently(provider, lambda: world.snapshot(intent.name))
        await self._change(owner, intent.name, WorldPhase.READY, handle)
        return handle

    async def _prune(self, owner: WorldOwner, world: World) -> None:
        """Removes older snapshots, except the snapshot from which the world was made."""
        bases = {
            row.intent.origin
            for row in await self._rows(owner, snapshots=False)
            if row.handle == world.handle
        }
        snapshots = await self._rows(owner, snapshots=True)
        for row in snapshots[:-KEPT_SNAPSHOTS]:
            if row.handle not in bases:
                await self._remove(row, owner.lease)

    async def give_up(self, owner: WorldOwner) -> None:
        """Removes the episode's worlds, and keeps their snapshots."""
        for row in await self._rows(owner, snapshots=False):
            await self._remove(row, owner.lease)

    async def release(self, lease: Lease) -> None:
        """Removes all worlds and snapshots of a finished trajectory. If the provider is down, they
        are removed at the end of the run."""
        rows = await self._journal.worlds(trajectory=lease.id)
        try:
            for row in sorted(rows, key=lambda row: row.is_snapshot):
                await self._remove(row, lease, patience=0.0)
        except ProviderDown as error:
            _log.warning("the worlds of %s are removed later: %s", lease.key, error)

    # --- the run

    async def close(self) -> None:
        """Removes the worlds and snapshots that no trajectory of the run will need. Call it after
        the run's leases were given back."""
        try:
            if self._used or await self._journal.worlds(run=self._run):
                names = self._providers.names
                await remove_leftovers(self._journal, self._providers, run=self._run, names=names)
        except (ProviderDown, WorldRefused) as error:
            _log.warning(
                "worlds of this run may be left: %s; holdfast worlds --clean removes them", error
            )
        finally:
            await self._providers.close()

    async def _rows(self, owner: WorldOwner, *, snapshots: bool) -> list[WorldRow]:
        rows = await self._journal.worlds(trajectory=owner.lease.id)
        return [
            row
            for row in rows
            if row.is_snapshot == snapshots and row.intent.episode == owner.episode
        ]

    async def _remove(self, row: WorldRow, lease: Lease, *, patience: float | None = None) -> None:
        provider = self._providers.of(row.intent.provider)
        await self._patiently(
            provider, lambda: remove_row(self._journal, provider, row, lease=lease), patience
        )

    async def _change(
        self, owner: WorldOwner, name: str, phase: WorldPhase, handle: str = ""
    ) -> None:
        await self._journal.change_world(name, phase, lease=owner.lease, handle=handle)

    def _intent(
        self,
        owner: WorldOwner,
        spec: WorldSpec,
        *,
        origin: str,
        cuts: int = 0,
        after: str = "",
        is_snapshot: bool = False,
    ) -> WorldIntent:
        return WorldIntent(
            name=token_hex(8),
            provider=spec.provider,
            spec=str(spec),
            trajectory=str(owner.lease.key),
            run=self._run.spec.name,
            episode=owner.episode,
            is_snapshot=is_snapshot,
            origin=origin,
            cuts=cuts,
            after=after,
        )

    async def _label_of(self, owner: WorldOwner, name: str) -> WorldLabel:
        self._label = self._label or await self._journal.worlds_label()
        lease = owner.lease
        return WorldLabel(
            world=name,
            journal=self._label,
            run=self._run.spec.name,
            trajectory=str(lease.key),
            epoch=lease.epoch,
        )

    async def _patiently(
        self,
        provider: WorldProvider,
        call: Callable[[], Awaitable[Result]],
        patience: float | None = None,
    ) -> Result:
        """Makes a call that is safe to repeat, and repeats it while the provider is down. Raises
        `ProviderDown` after `patience` seconds."""
        loop, pause = asyncio.get_running_loop(), FIRST_PAUSE
        until = loop.time() + (self._patience if patience is None else patience)
        while True:
            try:
                result = await call()
            except ProviderDown as error:
                if loop.time() >= until:
                    raise
                if self._down is None:
                    _log.warning("%s; new trajectories wait for it", error)
                self._down = provider
                await asyncio.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)
            else:
                self._down = None if self._down is provider else self._down
                return result
