"""`holdfast worlds`: lists worlds and snapshots, and removes those that nobody holds.

The journal's ledger lists the worlds that may exist, and each provider lists those that do exist.
"""

import argparse
import time

from holdfast.cli.setup.journals import to_read
from holdfast.cli.terminal.text import age_text, notify, print_json, visible
from holdfast.engine.export.prices import Prices, chosen_prices, money
from holdfast.journal import opened_journal
from holdfast.journal.sql.journal import Journal
from holdfast.journal.worlds import WorldPhase, WorldRow
from holdfast.records.exit_codes import Exit
from holdfast.worlds.running.providers import Providers
from holdfast.worlds.running.removal import Inventory, remove_leftovers, take_inventory

STRANGER = "unknown to the journal"


async def worlds(args: argparse.Namespace) -> int:
    async with to_read(args.journal):
        pass  # A journal that is not there is reported, not made.
    async with opened_journal(args.journal) as journal:
        providers = Providers()
        names = {row.intent.provider for row in await journal.worlds(removed=True)}
        try:
            if args.clean:
                removed = await remove_leftovers(journal, providers, names=names)
                notify(f"removed {removed:,} worlds and snapshots")
            inventory = await take_inventory(journal, providers, names)
        finally:
            await providers.close()
        return await _show(args, journal, inventory)


async def _show(args: argparse.Namespace, journal: Journal, inventory: Inventory) -> Exit:
    rows = await journal.worlds(removed=True) if args.all else inventory.rows
    prices = chosen_prices(args.price) or Prices()
    listed = [_fields(row, inventory, prices) for row in rows]
    listed += [
        {"name": info.name, "provider": name, "state": STRANGER, "handle": info.handle}
        for name, info in inventory.strangers
    ]
    if args.json:
        print_json(listed)
    elif not listed:
        print("no worlds")
    for fields in [] if args.json else listed:
        print(_line(fields, prices.currency))
    return Exit.OK


def _fields(row: WorldRow, inventory: Inventory, prices: Prices) -> dict[str, object]:
    seconds = row.seconds(time.time())
    return {
        "name": row.name,
        "provider": row.intent.provider,
        "kind": "snapshot" if row.is_snapshot else "world",
        "state": _state(row, is_present=row.name in inventory.present),
        "handle": row.handle,
        "run": row.intent.run,
        "trajectory": row.intent.trajectory,
        "spec": row.intent.spec,
        "created": row.created,
        "seconds": seconds,
        "cpu_seconds": row.cpu_seconds,
        "cost": 0.0 if row.is_snapshot else prices.of_worlds({row.intent.provider: seconds}),
    }


def _state(row: WorldRow, *, is_present: bool) -> str:
    if row.state is WorldPhase.REMOVED:
        return "removed"
    if not is_present:
        return "being made" if row.is_held and not row.handle else "missing"
    if row.state is WorldPhase.REMOVING:
        return "to be removed"
    return "held" if row.is_held else "left over" if row.is_over else "waits for its run"


def _line(fields: dict[str, object], currency: str) -> str:
    parts = [f"{fields['provider']}:{fields['handle'] or fields['name']}", str(fields["state"])]
    if "created" in fields:
        parts += [str(fields["kind"]), age_text(float(str(fields["seconds"])))]
        parts += [visible(str(fields["trajectory"]))]
        parts += [f"{fields['cpu_seconds']:.1f} s of CPU"] if fields["cpu_seconds"] else []
        parts += [f"{money(float(str(fields['cost'])))} {currency}"] if fields["cost"] else []
    return "  ".join(parts)
