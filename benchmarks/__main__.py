"""`make bench`: every benchmark, as one table with machine, date and commit beside it.

Ratios are compared with those that were recorded last (`ratios.json`): a row says what grew by more
than the noise of a shared machine. `--record` records the ratios of this run in their place.
"""

import argparse
import importlib
import json
import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from result import Result

ALL = (
    "weights",
    "startup", "journal", "engine", "environment", "gateway", "evaluation", "client", "rendering",
    "stalls", "scale", "storage", "resume", "embedded", "ledger", "claims", "postgres",
    "training", "training_run", "converting", "cluster", "pipeline", "looking", "worlds",
)  # fmt: skip

RATIOS = Path(__file__).with_name("ratios.json")
NOISE = 0.15
"""By how much a ratio may differ between two runs of the same code on a machine that others use."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(ALL)}")
    parser.add_argument("--record", action="store_true", help="record the ratios of this run")
    parser.add_argument("--full", action="store_true", help="the largest sizes, where there are")
    arguments = parser.parse_args()
    # Otherwise each process that is measured compiles what it imports.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    recorded: dict[str, float] = json.loads(RATIOS.read_text())
    ratios, held = {}, True
    print(_where())
    for name in arguments.names or ALL:
        module = importlib.import_module(name)
        measure = (
            getattr(module, "measure_full", module.measure) if arguments.full else module.measure
        )
        for result in measure():
            print(_line(result), _change(result, recorded.get(result.name)), flush=True)
            held = held and result.holds is not False
            if result.unit == "×":
                ratios[result.name] = round(result.value, 3)
    if arguments.record:
        RATIOS.write_text(json.dumps(dict(sorted((recorded | ratios).items())), indent=1) + "\n")
    return 0 if held else 1


def _change(result: Result, before: float | None) -> str:
    """Returns how the ratio differs from the recorded one, if it got worse by more than noise."""
    if result.unit != "×" or not before:
        return ""
    more = result.value / before
    if result.bound.startswith("≥"):
        more = 1 / more
    return f"  WORSE: it was {before:.2f} ×" if more > 1 + NOISE else ""


def _where() -> str:
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    return (
        f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC, commit {commit or 'unknown'}, "
        f"{os.cpu_count()} cores, Python {platform.python_version()}, {platform.machine()}"
    )


def _line(result: Result) -> str:
    verdict = {True: "holds", False: "MISSED", None: ""}[result.holds]
    figure = f"{result.value:,.2f} {result.unit}"
    return f"{result.name:<58} {figure:>14}  {result.bound:>7}  {verdict:<6} {result.detail}"


sys.exit(main())
