"""The same evaluations in other libraries, in the same run: CPU per row, against ours.

`python benchmarks evaluation_peers` installs each from PyPI into an environment of its own under
`.peers/`, once, and leaves out what does not install or does not run, saying so.
"""

import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from installing import FOLDER, why_missing
from msgspec import Struct
from result import Result

from evaluation import HERE, OURS, PYTEST, SHAPES, Shape, cpu


class Peer(Struct, frozen=True):
    name: str
    folder: str
    packages: tuple[str, ...]
    words: tuple[str, ...]
    """What its Python is told."""
    bound: str

    @property
    def command(self) -> Sequence[str]:
        return (str(FOLDER / self.folder / "bin/python"), *self.words)


_ASYNCIO = ("-p", "pytest_asyncio", "-o", "asyncio_mode=auto")
PEERS = (
    Peer(
        "eval-protocol",
        "eval-protocol",
        ("eval-protocol==0.3.33", "pytest-asyncio", "orjson", "soundfile"),
        (*PYTEST, *_ASYNCIO, str(HERE / "test_eval_protocol.py")),
        "≥ 15",
    ),
    Peer(
        "Inspect",
        "inspect",
        ("inspect-ai==0.3.285", "openai"),
        (str(HERE / "in_inspect.py"),),
        "≥ 30",
    ),
)


def measure() -> Iterator[Result]:
    for peer in PEERS:
        if (why := why_missing(FOLDER / peer.folder, *peer.packages)) is not None:
            print(f"{peer.name}: left out, {why}")
            continue
        for shape in SHAPES:
            yield from _against(peer, shape)


def _against(peer: Peer, shape: Shape) -> Iterator[Result]:
    with shape.engine() as engine, _adder() as tool:
        ours = cpu(OURS, shape, engine.url)
        engine.reset()
        try:
            theirs = cpu(peer.command, shape, engine.url, _environment(engine.url, tool))
        except RuntimeError as error:
            print(f"{peer.name}, {shape.name}: left out, {str(error)[-300:]}")
            return
        asked, wanted = engine.stats().requests, (shape.rows + 1) * shape.turns
    if asked < wanted:
        print(f"{peer.name}, {shape.name}: left out, it made {asked} of {wanted} calls")
        return
    name = f"evaluation, {shape.name}: CPU per row, {peer.name} / ours"
    detail = f"{theirs * 1e3:.1f} ms a row, ours {ours * 1e3:.2f}"
    yield Result(name, theirs / ours, "×", peer.bound, detail)


def _environment(engine: str, tool: str) -> dict[str, str]:
    return {
        "OPENAI_API_KEY": "none",
        "OPENAI_BASE_URL": f"{engine}/v1",
        "OPENAI_API_BASE": f"{engine}/v1",
        "BENCH_ADDER": tool,
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "EP_NO_UPLOAD": "1",
        "EP_DISABLE_AUTO_BROWSER": "1",
    }


@contextmanager
def _adder() -> Iterator[str]:
    """The tool for those that take it only over MCP: one server for all rows, not counted."""
    python = FOLDER / "eval-protocol/bin/python"
    if not python.exists():
        yield ""
        return
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    quiet = subprocess.DEVNULL
    server = subprocess.Popen(
        [str(python), str(HERE / "adder.py"), str(port)], stdout=quiet, stderr=quiet
    )
    try:
        while server.poll() is None and not _listens(port):
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        server.terminate()
        server.wait()


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
