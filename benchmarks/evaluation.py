"""Evaluations: CPU per row above start-up, against a bare aiohttp loop.

1,000 rows of one turn, and 200 rows of ten turns with a tool: with 256-token answers that have ids
and logprobs, and as plain messages from a chat API. Start-up is the CPU of the same command with a
single row, and is taken away. `evaluation_peers` runs the same in other libraries.
"""

import os
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import Struct, structs
from result import Result

from holdfast.testing import FakeEngine

HERE = Path(__file__).parent / "evaluations"
ROUNDS = 3
TURNS = 10
_FILLED = " ".join(["and so on"] * 16)
_CALL = '<tool_call>{"name": "add", "arguments": {"a": {n}, "b": 2}}</tool_call>'


class Shape(Struct, frozen=True):
    name: str
    rows: int
    turns: int = 1
    replies: tuple[str, ...] = ()
    is_chat: bool = False

    def engine(self) -> FakeEngine:
        """Without replies of its own it answers with letters, as many as may be."""
        return FakeEngine(
            mean_length=24 if self.replies else 0,
            replies=self.replies,
            dialect="chat" if self.is_chat else "vllm",
        )


SINGLE = Shape("single", 1000)
AGENT = Shape(
    "agent",
    200,
    TURNS,
    (*(f"@{turn} {_FILLED} {_CALL}" for turn in range(TURNS - 1)), f"@{TURNS - 1} {_FILLED} done"),
)
SHAPES = (SINGLE, AGENT)
CHAT = tuple(structs.replace(shape, is_chat=True) for shape in SHAPES)
PYTEST = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir=.", "-c", os.devnull)
OURS = (sys.executable, *PYTEST, str(HERE / "test_holdfast.py"))
BARE = (sys.executable, str(HERE / "bare.py"))


def measure() -> list[Result]:
    return [_collection(), *(_measured(shape) for shape in (*SHAPES, *CHAT))]


def _measured(shape: Shape) -> Result:
    with shape.engine() as engine:
        bare = [cpu(BARE, shape, engine.url) for _ in range(ROUNDS)]
        ours = [cpu(OURS, shape, engine.url) for _ in range(ROUNDS)]
    mine, theirs = statistics.median(ours), statistics.median(bare)
    rows = f"{shape.name}, chat" if shape.is_chat else shape.name
    name = f"evaluation, {rows}: CPU per row / bare aiohttp"
    detail = f"{mine * 1e3:.2f} ms a row, bare {theirs * 1e3:.2f}"
    return Result(name, mine / theirs, "×", "≤ 2", detail)


def cpu(
    words: Sequence[str], shape: Shape, url: str, more: Mapping[str, str] | None = None
) -> float:
    """CPU seconds per row, above those of a start with a single row."""
    start = total(words, shape, url, rows=1, more=more)
    return (total(words, shape, url, rows=shape.rows, more=more) - start) / (shape.rows - 1)


def total(
    words: Sequence[str],
    shape: Shape,
    url: str,
    *,
    rows: int,
    more: Mapping[str, str] | None = None,
) -> float:
    """`more` goes into the environment."""
    env = os.environ | {
        "BENCH_URL": url,
        "BENCH_SHAPE": shape.name,
        "BENCH_ROWS": str(rows),
        "BENCH_CHAT": "1" if shape.is_chat else "",
        "PYTHONPATH": str(HERE),
        **(more or {}),
    }
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with tempfile.TemporaryDirectory(dir=".") as folder:
        done = subprocess.run(words, env=env, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{words} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _collection() -> Result:
    """What the plugin adds to a session that has no evaluation in it."""
    with tempfile.TemporaryDirectory(dir=".") as folder:
        file = Path(folder).absolute() / "test_nothing.py"
        file.write_text("def test_nothing(): pass\n")
        words = [sys.executable, *PYTEST, "--collect-only", str(file)]
        with_it, without = [], []
        for _ in range(7):
            with_it.append(total(words, SINGLE, "", rows=1))
            without.append(total([*words, "-p", "no:holdfast"], SINGLE, "", rows=1))
    added = min(with_it) - min(without)
    detail = f"{min(with_it):.2f} s with it, {min(without):.2f} s without"
    return Result("evaluation: plugin's CPU in --collect-only", added, "s", "< 0.15", detail)
