"""Tokens per second of two-turn trajectories on one vLLM: Holdfast's, with a journal on disk, and
those of a bare aiohttp client. Both send the same requests with a seed. Part of `vllm_training.py`.

    python benchmarks/vllm_training_rates.py URL MODEL_FOLDER WORK_FOLDER TRAJECTORIES
"""

import asyncio
import json
import sys
import time
from pathlib import Path

import aiohttp
import msgspec
from transformers import AutoTokenizer

import holdfast
from holdfast.engine.guards.event_loop import fewer_collections, run_in_own_loop
from holdfast.policy.policy import Policy
from holdfast.policy.rendering.renderer import Renderer
from holdfast.policy.rendering.select import renderer_for

CONCURRENCY = 512
TOKENS = 96
PAIRS = 6
MORE = "Go on."


def task(number: int) -> str:
    return f"Tell me something about the number {number}."


class Prompts:
    """What the bare client sends, rendered before the clock starts."""

    def __init__(self, folder: Path, count: int):
        tokenizer = AutoTokenizer.from_pretrained(folder)
        suffix = f"\n<|im_start|>user\n{MORE}<|im_end|>\n<|im_start|>assistant\n"
        self.model = folder.name
        self.end, self.more = (
            tokenizer.convert_tokens_to_ids("<|im_end|>"),
            tokenizer.encode(suffix),
        )
        messages = ([{"role": "user", "content": task(number)}] for number in range(count))
        texts = (
            tokenizer.apply_chat_template(each, tokenize=False, add_generation_prompt=True)
            for each in messages
        )
        self.first = [tokenizer.encode(text) for text in texts]


async def bare(url: str, prompts: Prompts, count: int) -> int:
    """What one would write by hand. Returns the number of sampled tokens."""
    end, more = prompts.end, prompts.more
    slots, sampled = asyncio.Semaphore(CONCURRENCY), 0
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=CONCURRENCY)) as session:

        async def trajectory(number: int) -> None:
            nonlocal sampled
            ids = prompts.first[number]
            async with slots:
                for turn in range(2):
                    body = {
                        "model": prompts.model, "prompt": ids, "max_tokens": TOKENS,
                        "temperature": 1.0, "logprobs": 0, "return_token_ids": True,
                        "top_k": -1, "seed": 2 * number + turn,
                    }  # fmt: skip
                    async with session.post(f"{url}/v1/completions", json=body) as response:
                        choice = msgspec.json.decode(await response.read())["choices"][0]
                    reply = choice["token_ids"]
                    assert len(reply) == len(choice["logprobs"]["token_logprobs"])
                    sampled += len(reply)
                    ids = [*ids, *reply, *([] if reply[-1] == end else [end]), *more]

        await asyncio.gather(*(trajectory(number) for number in range(count)))
    return sampled


async def rollout(t: holdfast.Rollout) -> None:
    t.add(*t.task.messages)
    await t.generate()
    t.add(holdfast.user(MORE))
    await t.generate()


async def durable(policy: Policy, renderer: Renderer, path: Path, count: int) -> int:
    rows = [{"id": str(number), "prompt": task(number)} for number in range(count)]
    _, report = await holdfast.run(
        rollout, tasks=rows, policy=policy, renderer=renderer, journal=path,
        name="rates", seed=1,
        sampling=holdfast.Sampling(max_tokens=TOKENS),
        settings=holdfast.Settings(concurrency=CONCURRENCY),
    )  # fmt: skip
    assert report.turns == 2 * count, report
    return report.sampled_tokens


async def compare(url: str, model: Path, folder: Path, count: int) -> None:
    renderer, prompts = renderer_for(model), Prompts(model, count)
    async with holdfast.open_policy(url) as policy:
        for turn in range(2 * PAIRS + 2):  # The first two warm everything up.
            side = ("bare", "holdfast")[turn % 2]
            size = count if turn > 1 else min(count, 64)
            began, cpu = time.monotonic(), time.process_time()
            if side == "bare":
                tokens = await bare(url, prompts, size)
            else:
                tokens = await durable(policy, renderer, folder / f"rates-{turn}.db", size)
            seconds, cpu = time.monotonic() - began, time.process_time() - cpu
            values = {"tokens": tokens, "seconds": round(seconds, 2), "cpu": round(cpu, 2)}
            rate = {"tokens_per_s": round(tokens / seconds), "warm_up": turn < 2}
            print(json.dumps({"side": side, **values, **rate}), flush=True)


if __name__ == "__main__":
    address, model_folder, work_folder, trajectories = sys.argv[1:]
    with fewer_collections():
        run_in_own_loop(compare(address, Path(model_folder), Path(work_folder), int(trajectories)))
