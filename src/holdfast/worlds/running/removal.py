"""Removal: takes worlds and snapshots from their providers, and compares these with the ledger.

A row says that something is to be removed before the provider is asked, and that it is removed when
the provider has confirmed it. What a provider has and the ledger lacks is removed, too: somebody
made it whose trajectory had been taken over.
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
    """What a provider has, beside what the ledger says."""

    rows: list[WorldRow]
    """What may exist, according to the ledger."""
    present: frozenset[str]
    """The names of those that exist."""
    strangers: list[tuple[str, WorldInfo]]
    """What the provider has and the ledger lacks, with the provider's name. Worlds are before
    snapshots."""


async def remove_row(
    journal: Journal, provider: WorldProvider, row: WorldRow, *, lease: Lease | None = None
) -> bool:
    """Removes a world or a snapshot. Returns False if a living worker holds it. May be repeated."""
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
    """Returns the row's handle. Without one, finds by the label what was made and not answered."""
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
    """Compares the ledger with its providers, and with those in `names`. The providers are asked
    first, because an intent is older than what it is about."""
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
    """Removes everything that no trajectory of the run will need, or without a run everything that
    no living worker holds. Removes what the ledger does not know in any case. Returns how many."""
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
