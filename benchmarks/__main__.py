"""`make bench`: every benchmark, as one table with machine, date and commit beside it."""

import argparse
import importlib
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


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(ALL)}")
    names = parser.parse_args().names or ALL
    print(_where())
    held = True
    for name in names:
        for result in importlib.import_module(name).measure():
            print(_line(result), flush=True)
            held = held and result.holds is not False
    return 0 if held else 1


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
