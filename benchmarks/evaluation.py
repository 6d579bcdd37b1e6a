"""Evaluations: CPU per row above start-up, against a bare aiohttp loop and against peers.

1,000 rows of one turn, and 200 rows of ten turns with a tool, all with 256-token answers that have
ids and logprobs. Start-up is the CPU of the same command with a single row, and is taken away.
Peers run in environments of their own, which `make bench-peers` makes; without them their lines are
left out.
"""

import os
import resource
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from msgspec import Struct
from result import Result

from holdfast.testing import FakeEngine

HERE = Path(__file__).parent / "evaluations"
PEERS = Path(os.environ.get("HOLDFAST_PEERS_DIR", ".peers")).absolute()
ROUNDS = 3
TURNS = 10
_SILENT = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
_FILLED = " ".join(["and so on"] * 16)
_CALL = '<tool_call>{"name": "add", "arguments": {"a": {n}, "b": 2}}</tool_call>'


class Shape(Struct, frozen=True):
    name: str
    rows: int
    replies: tuple[str, ...] = ()


SINGLE = Shape("single", 1000)
AGENT = Shape(
    "agent",
    200,
    (*(f"@{turn} {_FILLED} {_CALL}" for turn in range(TURNS - 1)), f"@{TURNS - 1} {_FILLED} done"),
)
_PYTEST = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir=.", "-c", os.devnull)
_OURS = (sys.executable, *_PYTEST, str(HERE / "test_holdfast.py"))
_BARE = (sys.executable, str(HERE / "bare.py"))


def measure() -> list[Result]:
    results = [_collection()]
    for shape in (SINGLE, AGENT):
        results += _measured(shape)
    return results


def _measured(shape: Shape) -> list[Result]:
    length = 0 if shape is SINGLE else 24
    with FakeEngine(mean_length=length, replies=shape.replies) as engine:
        bare = [_cpu(_BARE, shape, engine.url) for _ in range(ROUNDS)]
        ours = [_cpu(_OURS, shape, engine.url) for _ in range(ROUNDS)]
        with _adder():
            peers = {name: _cpu(words, shape, engine.url) for name, words in _peers().items()}
    mine = statistics.median(ours)
    detail = f"{mine * 1e3:.2f} ms a row, bare {statistics.median(bare) * 1e3:.2f}"
    what = f"evaluation, {shape.name}: CPU per row"
    ratio = mine / statistics.median(bare)
    return [
        Result(f"{what} / bare aiohttp", ratio, "×", "≤ 2", detail),
        *(
            Result(f"{what}, {name} / ours", cpu / mine, "×", bound, f"{cpu * 1e3:.1f} ms")
            for name, cpu in peers.items()
            for bound in (_BOUNDS[name],)
        ),
    ]


_BOUNDS = {"eval-protocol": "≥ 15", "Inspect": "≥ 30"}


def _peers() -> dict[str, Sequence[str]]:
    """Those that are installed."""
    found: dict[str, Sequence[str]] = {
        "eval-protocol": (
            str(PEERS / "eval-protocol/bin/python"), *_PYTEST, "-p", "pytest_asyncio",
            "-o", "asyncio_mode=auto", str(HERE / "test_eval_protocol.py"),
        ),
        "Inspect": (str(PEERS / "inspect/bin/python"), str(HERE / "in_inspect.py")),
    }  # fmt: skip
    return {name: words for name, words in found.items() if Path(words[0]).exists()}


@contextmanager
def _adder() -> Iterator[None]:
    """The tool for those that take it only over MCP: one server for all rows, not counted."""
    python = PEERS / "eval-protocol/bin/python"
    if not python.exists():
        yield
        return
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    server = subprocess.Popen([python, HERE / "adder.py", str(port)], **_SILENT)
    os.environ["BENCH_ADDER"] = f"http://127.0.0.1:{port}/mcp"
    try:
        while server.poll() is None and not _listens(port):
            time.sleep(0.1)
        yield
    finally:
        server.terminate()
        server.wait()


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _cpu(words: Sequence[str], shape: Shape, url: str) -> float:
    """CPU seconds per row, above those of a start with a single row."""
    start = _total(words, shape, url, rows=1)
    return (_total(words, shape, url, rows=shape.rows) - start) / (shape.rows - 1)


def _total(words: Sequence[str], shape: Shape, url: str, *, rows: int) -> float:
    env = os.environ | {
        "BENCH_URL": url,
        "BENCH_SHAPE": shape.name,
        "BENCH_ROWS": str(rows),
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "OPENAI_API_KEY": "none",
        "OPENAI_BASE_URL": f"{url}/v1",
        "OPENAI_API_BASE": f"{url}/v1",
        "EP_NO_UPLOAD": "1",
        "EP_DISABLE_AUTO_BROWSER": "1",
        "PYTHONPATH": str(HERE),
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
        words = [sys.executable, *_PYTEST, "--collect-only", str(file)]
        with_it, without = [], []
        for _ in range(7):
            with_it.append(_total(words, SINGLE, "", rows=1))
            without.append(_total([*words, "-p", "no:holdfast"], SINGLE, "", rows=1))
    added = min(with_it) - min(without)
    detail = f"{min(with_it):.2f} s with it, {min(without):.2f} s without"
    return Result("evaluation: plugin's CPU in --collect-only", added, "s", "< 0.15", detail)
