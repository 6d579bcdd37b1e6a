"""Other gateways that record, on the same traffic and in the same run: CPU per call, against ours.

`python benchmarks peers` installs each from PyPI into an environment of its own under `.peers/`,
once, and leaves out what does not install, saying so. Theirs keep their records in memory, or write
them after the answer; ours is durable before it.
"""

import asyncio
import contextlib
import os
import socket
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import aiohttp
from gateway_service import Agent, client
from installing import FOLDER, why_missing
from result import Result

from gateway import AT_ONCE, ask, cpu
from holdfast.testing import FakeEngine

HERE = Path(__file__).parent
ROUNDS = 2
SHAPES = {"400/100": (400, 100, 160), "4k/300": (4_000, 300, 96), "32k/500": (32_000, 500, 64)}
START_SECONDS = 300.0
BASES = "bases"


class DidNotStart(Exception):
    """With what it said."""


@dataclass(frozen=True)
class Peer:
    name: str
    package: str
    command: tuple[str, ...]
    """In its environment's `bin`; `{port}`, `{engine}`, `{here}` and `{folder}` are filled in."""
    base: str
    """What an agent's address begins with; `{agent}` is its number. `BASES`: it writes them into a
    file of that name in its folder."""
    ready: str
    config: str = ""
    """Of a file `config.yaml` in its folder."""

    @property
    def bin(self) -> Path:
        return FOLDER / self.name.partition(",")[0].replace(" ", "-").lower() / "bin"


_LITELLM = """
model_list:
  - model_name: fake
    litellm_params:
      model: hosted_vllm/fake
      api_base: {engine}/v1
      api_key: none
      extra_body: {{return_token_ids: true}}
      logprobs: true
"""
_RLLM = ("rllm-model-gateway", "--port", "{port}", "--worker", "{engine}/v1", "--log-level",
         "warning", "--store")  # fmt: skip
PEERS = (
    Peer("LiteLLM", "litellm[proxy]==1.106.2",
         ("litellm", "--config", "{folder}/config.yaml", "--port", "{port}", "--host", "127.0.0.1"),
         "", "/health/liveliness", _LITELLM),
    Peer("Agent Lightning", "agentlightning==0.3.0",
         ("python", "{here}/peer_agent_lightning.py", "{port}", "{engine}", "{folder}"),
         BASES, "/health/liveliness"),
    Peer("rLLM, in memory", "rllm-model-gateway==0.1.0", (*_RLLM, "memory"),
         "/sessions/s{agent}", "/health"),
    Peer("rLLM, SQLite", "rllm-model-gateway==0.1.0",
         (*_RLLM, "sqlite", "--db-path", "{folder}/traces.db"), "/sessions/s{agent}", "/health"),
)  # fmt: skip


def measure() -> Iterator[Result]:
    with FakeEngine(mean_length=0) as engine:
        for peer in PEERS:
            if (why := why_missing(peer.bin.parent, peer.package)) is not None:
                print(f"{peer.name}: left out, {why}")
                continue
            try:
                yield from _against(peer, engine.url)
            except (DidNotStart, aiohttp.ClientError) as error:
                print(f"{peer.name}: left out, {error}")


def _against(peer: Peer, engine: str) -> Iterator[Result]:
    for name, shape in SHAPES.items():
        rounds = [(_cpu(peer, engine, shape), cpu("gateway", engine, shape)) for _ in range(ROUNDS)]
        theirs, ours = (min(column) * 1e3 for column in zip(*rounds, strict=True))
        yield Result(
            f"peers: CPU per call, {peer.name} / ours, {name}",
            statistics.median(one / other for one, other in rounds), "×", "≥ 4",
            f"{theirs:.1f} ms a call, ours {ours:.2f}",
        )  # fmt: skip


def _cpu(peer: Peer, engine: str, shape: tuple[int, int, int]) -> float:
    prompt, reply, calls = shape
    with tempfile.TemporaryDirectory(dir=".") as folder, _started(peer, engine, folder) as running:
        url, child = running
        asyncio.run(_ready(peer, url, child, Path(folder)))
        bases = [url + base for base in _bases(peer, Path(folder))]
        return asyncio.run(_asked(bases, child.pid, prompt, reply, calls=calls)) / calls


def _bases(peer: Peer, folder: Path) -> list[str]:
    if peer.base != BASES:
        return [peer.base.format(agent=number) for number in range(AT_ONCE)]
    return (folder / BASES).read_text().split()


async def _asked(bases: list[str], pid: int, prompt: int, reply: int, *, calls: int) -> float:
    async with client() as session:
        agents = [Agent(session, base) for base in bases]
        await ask(agents, prompt, reply, calls=2 * AT_ONCE)
        before = _used(pid)
        await ask(agents, prompt, reply, calls=calls, first=2)
        return _used(pid) - before


async def _ready(peer: Peer, url: str, child: "subprocess.Popen[bytes]", folder: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not (await _answers(url + peer.ready) and _told_bases(peer, folder)):
        if child.poll() is not None or time.monotonic() > deadline:
            said = (folder / "log").read_text(errors="replace").strip()
            raise DidNotStart(f"{peer.name} did not start: {said[-500:]}")
        await asyncio.sleep(0.2)


async def _answers(url: str) -> bool:
    with contextlib.suppress(aiohttp.ClientConnectionError):
        async with client() as session, session.get(url) as answer:
            return answer.status == 200
    return False


def _told_bases(peer: Peer, folder: Path) -> bool:
    return peer.base != BASES or (folder / BASES).exists()


@contextlib.contextmanager
def _started(
    peer: Peer, engine: str, folder: str
) -> Iterator["tuple[str, subprocess.Popen[bytes]]"]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    filled = {"port": port, "engine": engine, "here": HERE, "folder": folder}
    (Path(folder) / "config.yaml").write_text(peer.config.format(**filled))
    command = [part.format(**filled) for part in peer.command]
    command[0] = str(peer.bin / command[0])
    environment = {
        "PATH": f"{peer.bin}:{os.environ['PATH']}", "HOME": folder, "OPENAI_API_KEY": "none",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True", "AGENTOPS_TELEMETRY_ENABLED": "false",
        "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true",
    }  # fmt: skip
    log = (Path(folder) / "log").open("wb")
    child = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
    try:
        yield f"http://127.0.0.1:{port}", child
    finally:
        child.terminate()
        try:
            child.wait(20)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
        log.close()


def _used(pid: int) -> float:
    """CPU seconds of a process and of those that it started."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    used = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    started = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return used + sum(_used(int(one)) for one in started)
