"""Uses every command and every public name in an environment that has Holdfast and one extra alone.

    python walk.py [EXTRA]      (no EXTRA: the core, without any)

Each one has to work, or to fail with one line that names an extra which is not here. It fails if
a command of the help has no use below, so that a new command gets one.
"""

import argparse
import asyncio
import contextlib
import importlib
import inspect
import multiprocessing
import os
import pkgutil
import re
import shlex
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from importlib.metadata import distribution
from pathlib import Path

import holdfast
from holdfast.cli.main import _parser, entry
from holdfast.records.errors import UsageError
from holdfast.records.exit_codes import Exit
from holdfast.testing import FakeEngine

NAMED = re.compile(r"pip install (?:-c constraints\.txt )?(?:'\.\[(\w+)\]'|[\w.'=<>-]+)")
"""What an error says to install: an extra of ours, or another package."""
PROCESSES = multiprocessing.get_context("forkserver")
# What every command imports is imported once.
PROCESSES.set_forkserver_preload(["holdfast.cli.main", "holdfast.cli.setup.errors", "rich.text"])
BUG = ("Traceback", "bug in Holdfast")
NOBODY = "postgresql://nobody@127.0.0.1:1/nothing?connect_timeout=1"
AGENT = """
async def solve(t):
    t.add(*t.task.messages)
    await t.generate(max_tokens=8)


def score(trajectory):
    return 1.0
"""
ASK = "--tasks tasks.jsonl --policy ENGINE --quiet"
LEARN = "--out trained --steps 1 --groups 1 --samples 2 --max-tokens 4 --quiet"
EXPORTED = ("samples", "rows", "trajectories", "failures", "verl", "slime", "trl", "nemo", "tinker")

# Each use, and the extra that it needs; after the extra, the exit codes of a use that works.
COMMANDS: tuple[tuple[str, str, tuple[int, ...]], ...] = (
    ("init made", "", (0,)),
    (f"run agent.py --run first {ASK}", "", (0,)),
    (f"run agent.py --run second {ASK}", "", (0,)),
    (f"run agent.py --run processes {ASK} --score-workers 1", "", (0,)),
    ("run agent.py --run engine --tasks tasks.jsonl --quiet", "local", (0,)),
    (f"run agent.py --run tokens {ASK} --tokenizer tiny", "renderers", (0, 7)),
    ("run agent.py --run columns --tasks tasks.parquet --policy ENGINE --quiet", "parquet", (0,)),
    ("run agent.py --run hub --tasks hf:no/such --policy ENGINE --quiet", "datasets", (2,)),
    (f"run agent.py --run server {ASK} --journal {NOBODY}", "postgres", (2, 5)),
    (f"run agent.py --run nodes {ASK} --journal {NOBODY} --cluster 127.0.0.1:1", "ray", (2, 5)),
    (f"gateway --run agents {ASK} --port 0 --run-deadline 1", "", (5,)),
    (f"train agent.py --run learned --tasks tasks.jsonl {LEARN}", "train", (0, 7)),
    ("runs", "", (0,)),
    ("show first", "", (0,)),
    ("show first sum/0", "", (0,)),
    ("logs processes", "", (0,)),
    ("resume first", "", (0,)),
    ("rename second other", "", (0,)),
    ("tag first kept", "", (0,)),
    *((f"export first --what {what} --out {what}.jsonl", "", (0, 9)) for what in EXPORTED),
    ("export first --what sft --out sft.jsonl", "", (0, 9)),
    *((f"export first --what {what} --out {what}/", "", (0,)) for what in ("atif", "inspect")),
    ("export first --what trajectories --out rows.csv --format csv", "", (0,)),
    ("export first --what samples --out samples.parquet", "parquet", (0,)),
    ("compare first other", "", (0,)),
    ("trace first --otel http://127.0.0.1:1", "otel", (5,)),
    ("report first", "", (0,)),
    ("report first --out report.html", "", (0,)),
    ("report first --out tokens.html --tokenizer tiny", "renderers", (0,)),
    ("journal check", "", (0,)),
    ("journal compact", "", (0,)),
    ("journal copy holdfast.db copy.db", "", (0,)),
    (f"journal copy holdfast.db {NOBODY}", "postgres", (2, 5)),
    *((f"journal {action} {NOBODY}", "postgres", (2, 5)) for action in ("check", "compact")),
    ("journal ledger first", "", (0, 2)),
    ("fork first sum/0 --at 0", "", (0,)),
    ("worlds", "", (0,)),
    ("policy check ENGINE", "", (0, 1)),
    ("serve --until-stdin-closes --port 0", "local", (-signal.SIGTERM,)),
    ("view --until-stdin-closes --port 0", "view", (Exit.STOPPED,)),
    ("config", "", (0,)),
    *((f"completion {shell}", "", (0,)) for shell in ("bash", "zsh", "fish")),
    ("rm other --yes", "", (0,)),
    ("prune --unfinished --yes", "", (0,)),
)


class Walk:
    """Everything that was used, and what was wrong with it."""

    def __init__(self, extra: str, *, engine: str):
        self.here = {"", extra, *_included(extra)}
        self.engine = engine
        self.wrong: list[str] = []
        self.count = 0

    def check(self, what: str, *, needs: str | None, works: bool, error: str) -> None:
        """`works`: it did what it is for, or failed for a reason that has nothing to do with what
        is installed. `needs`: the extra without which it may fail; None: any."""
        self.count += 1
        named = {match[1] or "" for match in NAMED.finditer(error)}
        if any(sign in error for sign in BUG):
            problem = "is a bug"
        elif not named:
            problem = "" if works else "neither works nor names an extra"
        elif len(error.splitlines()) != 1:
            problem = "says more than one line"
        elif (named & self.here) - {""} or needs in self.here:
            problem = "asks for what is here, or for what it does not need"
        else:
            problem = "" if needs is None or needs in named else f"does not name {needs}"
        if problem:
            self.wrong.append(f"{what}: {problem}\n{error[-2000:]}")

    def command(self, line: str, *, needs: str, codes: tuple[int, ...]) -> None:
        code, error = _call(shlex.split(line.replace("ENGINE", self.engine)))
        what = f"holdfast {line} (exit code {code})"
        self.check(what, needs=needs, works=code in codes, error=error)

    def use(self, what: str, function: Callable[[], object], *, needs: str | None) -> None:
        works, error = True, ""
        try:
            function()
        except holdfast.HoldfastError as reason:
            error = f"{reason}"
        except BaseException as reason:
            works, error = False, f"{type(reason).__name__}: {reason}"
        self.check(what, needs=needs, works=works, error=error)


def _included(extra: str) -> Iterator[str]:
    """The extras that this one names in turn."""
    for line in distribution("holdfast-rollouts").requires or ():
        if match := re.fullmatch(rf"holdfast-rollouts\[(.+)\]; extra == '{extra}'", line):
            for name in match[1].split(","):
                yield name
                yield from _included(name)


def _call(words: list[str]) -> tuple[int, str]:
    """Exit code and stderr of a command, in a process of its own with an empty standard input."""
    printed = Path("stderr")
    process = PROCESSES.Process(target=_enter, args=(words, printed))
    process.start()
    process.join()
    return process.exitcode or 0, printed.read_text()


def _enter(words: list[str], printed: Path) -> None:
    """Is the command from here on."""
    sys.argv[1:] = words
    os.dup2(os.open(printed, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    entry()


def _leaves(parser: argparse.ArgumentParser, words: tuple[str, ...] = ()) -> Iterator[str]:
    """The commands that the help lists, each with its subcommands."""
    choices = [a.choices for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
    if not choices:
        yield " ".join(words)
    for name, child in (choices[0] if choices else {}).items():
        yield from _leaves(child, (*words, name))


def _public_names() -> Iterator[tuple[str, str]]:
    """Each package of Holdfast, and each name that one exports."""
    packages = [
        name for _, name, is_package in pkgutil.iter_modules(holdfast.__path__) if is_package
    ]
    for package in ("holdfast", *(f"holdfast.{name}" for name in packages)):
        yield package, ""
        with contextlib.suppress(UsageError):
            exported = getattr(importlib.import_module(package), "__all__", ())
            yield from ((package, name) for name in exported)


def _use_names(walk: Walk) -> None:
    for package, name in _public_names():
        walk.use(f"{package}.{name}".rstrip("."), lambda p=package, n=name: _get(p, n), needs=None)


def _get(package: str, name: str) -> object:
    module = importlib.import_module(package)
    return getattr(module, name) if name else module


def _use_commands(walk: Walk) -> None:
    leaves = list(_leaves(_parser()))
    for leaf in leaves:
        walk.command(f"{leaf} --help", needs="", codes=(0,))
        if not any(line.split()[: len(leaf.split())] == leaf.split() for line, *_ in COMMANDS):
            walk.wrong.append(f"holdfast {leaf}: {__file__} has no use of it")
    for line, needs, codes in COMMANDS:
        walk.command(line, needs=needs, codes=codes)


def _use_interface(walk: Walk) -> None:
    """What needs an extra when it is called, and not when it is imported."""
    tasks = [{"prompt": "1 + 1 ="}]
    result = holdfast.run_sync(_solve, tasks=tasks, policy=walk.engine, scorer=lambda _: 1.0)
    samples = result.samples
    for use, needs in (
        (lambda: result.table, ""),
        (lambda: result.to_pandas(), "pandas"),
        (lambda: result.to_dataset(), "datasets"),
        (lambda: list(holdfast.read_tasks("tasks.parquet")), "parquet"),
        (lambda: holdfast.renderer_for("tiny"), "renderers"),
        (lambda: holdfast.open_journal(NOBODY), "postgres"),
        (lambda: asyncio.run(_list_mcp_tools()), "mcp"),
        (lambda: _get("holdfast.delivery.dataset", "DeliveryDataset"), "local"),
        (lambda: holdfast.convert.to_nemo(samples, tensors=True), "local"),
        (lambda: holdfast.convert.to_tinker(samples)[0].datum(), None),
        (lambda: holdfast.convert.to_trl_async(samples, versions=()), None),
        (lambda: holdfast.convert.to_verl(samples).data_proto(), None),
    ):
        walk.use(inspect.getsource(use).strip(), use, needs=needs)


async def _solve(t: holdfast.Rollout) -> None:
    t.add(*t.task.messages)
    await t.generate(max_tokens=8)


async def _list_mcp_tools() -> None:
    from holdfast.environments import McpServer

    await McpServer.stdio(sys.executable, "-c", "", timeout=5).tools()


def _write_files() -> None:
    Path("agent.py").write_text(AGENT)
    shutil.copytree(Path(holdfast.__path__[0], "embedded", "tiny"), "tiny")
    Path("tasks.jsonl").write_text('{"id": "sum", "prompt": "1 + 1 ="}\n')
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        Path("tasks.parquet").touch()
    else:
        pyarrow.parquet.write_table(pyarrow.table({"prompt": ["1 + 1 ="]}), "tasks.parquet")


def walk(extra: str) -> int:
    os.environ |= {"HF_HUB_OFFLINE": "1", "NO_COLOR": "1", "HOLDFAST_LOGS": "logs"}
    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.chdir(folder),
        FakeEngine() as engine,
    ):
        _write_files()
        walk = Walk(extra, engine=engine.url)
        for part in (_use_names, _use_commands, _use_interface):
            part(walk)
    print("\n".join(walk.wrong) or f"{extra or 'the core'} alone: {walk.count} uses")
    return 1 if walk.wrong else 0


if __name__ == "__main__":
    sys.exit(walk(*sys.argv[1:] or [""]))
