"""Removal: removes worlds and snapshots, and compares their providers with the ledger.

Before the provider is asked, a row of the ledger says that the world or snapshot is being removed.
Once the provider has confirmed it, the row says that it is removed. Worlds and snapshots that a
provider has and the ledger lacks are removed, too: a worker made them after another worker had
taken over its trajectory.
"""

from collections.abc import Collection

from msgspec import Struct

from holdfast import crashpoint
from holdfast.journal.sql.journal import Journal
from holdfast.journal.types import Lease
from holdfast.journal.worlds import WorldPhase, WorldRow
from holdfast.records.run import Run
from holdfast.worlds.contract.failures import WorldGone
from holdfast.worlds.contract.world import WorldInfo, WorldProvider
from holdfast.worlds.running.providers import Providers


class Inventory(Struct, frozen=True):
    """The worlds and snapshots in the ledger, compared with those that the providers have."""

    rows: list[WorldRow]
    """The worlds and snapshots that may exist, according to the ledger."""
    present: frozenset[str]
    """The names of the worlds and snapshots that the providers have."""
    strangers: list[tuple[str, WorldInfo]]
    """Worlds and snapshots that a provider has and the ledger lacks, with the provider's name. Each
    provider's worlds come before its snapshots."""


async def remove_row(
    journal: Journal, provider: WorldProvider, row: WorldRow, *, lease: Lease | None = None
) -> bool:
    """Removes a world or a snapshot. Returns False if a living worker holds it. Repeating the call
    is safe."""
    if not await journal.change_world(row.name, WorldPhase.REMOVING, lease=lease):
        return False
    crashpoint.reach("worlds.removing")
    cpu_seconds = 0.0
    for handle in await _handles(journal, provider, row):
        if row.is_snapshot:
            await provider.discard(handle)
        else:
            cpu_seconds = max(cpu_seconds, await _used(provider, handle))
            await provider.destroy(handle)
    crashpoint.reach("worlds.removed")
    return await journal.change_world(
        row.name, WorldPhase.REMOVED, lease=lease, cpu_seconds=cpu_seconds
    )


async def _handles(journal: Journal, provider: WorldProvider, row: WorldRow) -> list[str]:
    """Returns the handles of the row's world or snapshot. If the row has no handle, because the
    provider's answer was lost, they are found by the label."""
    if row.handle:
        return [row.handle]
    label = await journal.worlds_label()
    if row.is_snapshot:
        infos = [info for info in await provider.snapshots(journal=label) if info.name == row.name]
    else:
        infos = await provider.worlds(journal=label, world=row.name)
    return [info.handle for info in infos]


async def _used(provider: WorldProvider, handle: str) -> float:
    try:
        return (await (await provider.attach(handle)).use()).cpu_seconds
    except WorldGone:
        return 0.0


async def take_inventory(
    journal: Journal, providers: Providers, names: Collection[str] = ()
) -> Inventory:
    """Compares the ledger with its providers, and with the providers in `names`. The ledger's rows
    are read after the providers were asked. Since every world is in the ledger before it exists, a
    world without a row is really unknown."""
    label = await journal.worlds_label()
    known = {row.intent.provider for row in await journal.worlds()} | set(names)
    listed: list[tuple[str, WorldInfo]] = []
    for name in sorted(known):
        provider = providers.of(name)
        for infos in (
            await provider.worlds(journal=label),
            await provider.snapshots(journal=label),
        ):
            listed += [(name, info) for info in infos]
    rows = await journal.worlds()
    expected = {row.name for row in rows}
    return Inventory(
        rows,
        frozenset(info.name for _, info in listed),
        [(name, info) for name, info in listed if info.name not in expected],
    )


async def remove_leftovers(
    journal: Journal,
    providers: Providers,
    *,
    run: Run | None = None,
    names: Collection[str] = (),
) -> int:
    """Removes worlds and snapshots that are no longer needed. Returns how many.

    With `run`, it removes those that no trajectory of the run will need, and without `run` all that
    no living worker holds. In both cases, it also removes those that the ledger does not know.
    """
    runs_rows = {row.name for row in await journal.worlds(run=run)} if run else set()
    inventory, removed = await take_inventory(journal, providers, names), 0
    # Snapshots stand on one another, so the newest go first.
    newest_first = inventory.rows[::-1]
    for row in sorted(newest_first, key=lambda row: row.is_snapshot):
        if run and not (row.name in runs_rows and row.is_over):
            continue
        removed += await remove_row(journal, providers.of(row.intent.provider), row)
    for name, info in inventory.strangers:
        provider = providers.of(name)
        await (provider.discard if info.is_snapshot else provider.destroy)(info.handle)
        removed += 1
    return removed
