"""Stalls: the longest time for which the event loop stands still while there are large prompts.

Prompts of 3 MB and small ones are asked for at once, with a real tokenizer and chat template:
through `t.generate`, and by agents through the gateway. A loop that turns is late by milliseconds;
one that renders a large prompt itself stands still for seconds, and all that it serves with it.
Beside it, a loop that does nothing shows how late this machine makes anyone.
"""

import asyncio
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from gateway_service import Agent, Service, client
from rendering import model_folder
from result import Result

from holdfast.testing import FakeEngine

HERE = Path(__file__).parent
LARGE, LARGE_BYTES = 2, 3_000_000
SMALL, SMALL_BYTES = 8, 2_000
TURNS = 2
TOKENS = 32
BOUND = "≤ 0.25"
Found = dict[str, float]


def measure() -> list[Result]:
    # The engine's own vocabulary, bytes and two marks: each byte is a token, which is the worst.
    made = model_folder(256, special=("<|im_start|>", "<|im_end|>"), markup=())
    with made as model, FakeEngine(mean_length=0, max_model_len=1 << 30) as engine:
        return [
            _result("t.generate", _generate, engine.url, model),
            _result("gateway", _gateway, engine.url, model),
        ]


def large_text(number: int) -> str:
    """Words, no two alike in a row: a tokenizer remembers words."""
    words = (f"{(number + 7) * n * 2_654_435_761 % 999_983} of {n}, " for n in range(LARGE_BYTES))
    text = ""
    while len(text) < LARGE_BYTES:
        text += "".join(next(words) for _ in range(10_000))
    return text[:LARGE_BYTES]


def _result(where: str, work: Callable[[str, Path], Found], url: str, model: Path) -> Result:
    with _child("nothing", url, model) as idle:
        found = work(url, model)
        bare: Found = json.loads(idle.communicate("\n", timeout=600)[0])
    detail = (
        f"{found['seconds']:.0f} s in all, {found['late']:.0f} times late by more than 0.05 s; "
        f"a loop that does nothing: {bare['longest']:.2f} s, {bare['late']:.0f} times"
    )
    return Result(f"stalls: longest, 3 MB prompts, {where}", found["longest"], "s", BOUND, detail)


def _generate(url: str, model: Path) -> Found:
    with _child("generate", url, model) as child:
        found: Found = json.loads(child.communicate(timeout=600)[0])
    return found


def _gateway(url: str, model: Path) -> Found:
    with _child("gateway", url, model) as child:
        running = Service(child, "gateway")
        asyncio.run(_agents(running))
        found = running.used()
        running.end()
    return found


async def _agents(running: Service) -> None:
    async with client() as session:
        agents = [await Agent.taken(session, running) for _ in range(LARGE + SMALL)]
        await asyncio.gather(*(_agent(number, agent) for number, agent in enumerate(agents)))


async def _agent(number: int, agent: Agent) -> None:
    text = large_text(number) if number < LARGE else "a few words " * (SMALL_BYTES // 12)
    messages = [{"role": "user", "content": text}]
    for _ in range(TURNS):
        said = await agent.ask(messages, reply=TOKENS)
        messages += [{"role": "assistant", "content": said}, {"role": "user", "content": "go on"}]


@contextmanager
def _child(mode: str, url: str, model: Path) -> "Iterator[subprocess.Popen[str]]":
    with tempfile.TemporaryDirectory(dir=".") as folder:
        command = [sys.executable, str(HERE / "stalls_child.py"), mode, url, folder, str(model)]
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as child:
            yield child
