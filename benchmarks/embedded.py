"""The embedded engine: throughput at 32 requests at once, against `generate` one at a time.

The model that comes with Holdfast, one thread. The engine runs in a process of its own and is asked
over HTTP, with ids and logprobs; `generate` runs in another, without a server, ids or logprobs.
Both read the same prompts and sample as many tokens.
"""

import asyncio
import json
import statistics
import subprocess
import sys
import time

import aiohttp
from result import Result

from holdfast.embedded import EmbeddedEngine
from holdfast.embedded.model.files import TINY

AT_ONCE = 32
REQUESTS = 96
BARE = 8
PROMPT = 48
TOKENS = 64
ROUNDS = 3

_GENERATE = f"""
import sys, time, torch
from transformers import AutoModelForCausalLM
from transformers.utils import logging
logging.set_verbosity_error()
logging.disable_progress_bar()
torch.set_num_threads(1)
model = AutoModelForCausalLM.from_pretrained({str(TINY)!r}, local_files_only=True,
                                             dtype=torch.float32).eval()
def one(number):
    ids = torch.tensor([[(7 * number + i) % 200 + 20 for i in range({PROMPT})]])
    with torch.inference_mode():
        model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=True, top_k=0,
                       min_new_tokens={TOKENS}, max_new_tokens={TOKENS})
one(0)
begun = time.perf_counter()
for number in range({BARE}):
    one(number)
print({BARE} * {TOKENS} / (time.perf_counter() - begun))
"""


def measure() -> list[Result]:
    ratios, ours, theirs = [], [], []
    with EmbeddedEngine(options=("--max-batch", str(AT_ONCE))) as engine:
        asyncio.run(_served(engine, requests=4))
        for _ in range(ROUNDS):
            bare = _generated()
            batched = asyncio.run(_served(engine, requests=REQUESTS))
            ratios.append(batched / bare)
            ours.append(batched)
            theirs.append(bare)
    detail = (
        f"{statistics.median(ours):,.0f} tokens/s over HTTP, "
        f"generate {statistics.median(theirs):,.0f}"
    )
    name = "embedded: tokens/s of 32 at once / generate"
    return [Result(name, statistics.median(ratios), "×", "≥ 5", detail)]


def _generated() -> float:
    """Tokens per second of `generate`, one request after another."""
    done = subprocess.run(
        [sys.executable, "-c", _GENERATE], capture_output=True, text=True, check=True
    )
    return float(json.loads(done.stdout))


async def _served(engine: EmbeddedEngine, *, requests: int) -> float:
    """Tokens per second of the engine, 32 requests at once."""
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(session: aiohttp.ClientSession, number: int) -> None:
        body = {
            "model": engine.model,
            "prompt": [(7 * number + i) % 200 + 20 for i in range(PROMPT)],
            "max_tokens": TOKENS,
            "seed": number,
            "ignore_eos": True,
            "logprobs": 0,
            "return_token_ids": True,
        }
        async with gate, session.post(f"{engine.url}/v1/completions", json=body) as response:
            answer = await response.json()
            assert len(answer["choices"][0]["token_ids"]) == TOKENS

    async with aiohttp.ClientSession() as session:
        begun = time.perf_counter()
        async with asyncio.TaskGroup() as tasks:
            for number in range(requests):
                tasks.create_task(one(session, number))
        return requests * TOKENS / (time.perf_counter() - begun)
