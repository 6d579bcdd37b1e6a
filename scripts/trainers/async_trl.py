"""TRL's `AsyncGRPOTrainer` on durable rollouts, which ends by SIGKILL at a point of
`HOLDFAST_CRASH`. The trainer is TRL's own; the kernel of its attention, which it takes from a hub
and which needs a GPU, is written out in torch here, and the GPU's peak speed is unknown.

`--history FILE` notes each row in the step that trains it, by TRL's own classes and not by ours.
With `--stragglers N`, one member of each group waits until N others of any group have finished;
with `--unrewarded`, no rollout has a reward.
"""

import argparse
import asyncio
import hashlib
import json
import os
import sys
from collections import deque
from pathlib import Path
from types import SimpleNamespace

sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "longer"))

import calculator
import torch
from transformers import AutoTokenizer
from trl.experimental.async_grpo import (
    AsyncGRPOConfig,
    AsyncGRPOTrainer,
    async_grpo_trainer,
    packing,
)
from trl.experimental.async_grpo.async_grpo_trainer import DataCollatorForRollout
from trl_grpo import newest_checkpoint, rows

import holdfast.trl
from holdfast.embedded.model.files import TINY
from holdfast.testing import crash_points


def attention(query, key, value, cu_q, cu_k, max_q, max_k, *, softmax_scale, causal, window_size):
    """What `flash_attn_varlen_func` computes: each segment sees the end of its path, causally."""
    assert causal
    assert window_size == (-1, -1)
    heads = query.shape[1] // key.shape[1]
    out = torch.empty_like(query)
    for i in range(len(cu_q) - 1):
        q = query[cu_q[i] : cu_q[i + 1]].transpose(0, 1)
        k, v = (
            x[cu_k[i] : cu_k[i + 1]].repeat_interleave(heads, dim=1).transpose(0, 1)
            for x in (key, value)
        )
        seen = torch.ones(q.shape[1], k.shape[1], dtype=torch.bool).tril(k.shape[1] - q.shape[1])
        found = torch.nn.functional.scaled_dot_product_attention(
            q, k, v, attn_mask=seen, scale=softmax_scale
        )
        out[cu_q[i] : cu_q[i + 1]] = found.transpose(0, 1)
    return out


def note_history(path: Path) -> None:
    """A line for each row: the step that trained it, and what names it."""
    formed: deque[list[str]] = deque()
    collate, train = DataCollatorForRollout.torch_call, AsyncGRPOTrainer.training_step

    def name(sample) -> str:
        body = sample["input_ids"].tobytes() + sample["old_log_probs"].tobytes()
        return f"{sample['group_id']}:{hashlib.sha256(body).hexdigest()[:16]}"

    def forming(self, examples):
        formed.append([name(s) for rank in examples[0] for s in rank.samples])
        return collate(self, examples)

    def training(self, *args, **kwargs):
        found = train(self, *args, **kwargs)
        with path.open("a") as file:
            for row in formed.popleft():
                print(json.dumps([self.state.global_step + 1, row]), file=file)
        return found

    DataCollatorForRollout.torch_call = forming
    AsyncGRPOTrainer.training_step = training


def with_stragglers(others: int):
    finished, enough = 0, asyncio.Event()

    async def solve(t) -> None:
        nonlocal finished
        await calculator.solve(t)
        if t.key.sample == 1:
            await enough.wait()
        finished += 1
        if finished >= others:
            enough.set()

    return solve


async def without_reward(t) -> float | None:
    await calculator.solve(t)
    return None if t.task.messages else 1.0


def rollout(args: argparse.Namespace):
    """With its scorer."""
    if args.unrewarded:
        return without_reward, None
    solve = with_stragglers(args.stragglers) if args.stragglers else calculator.solve
    return solve, calculator.score


def train(args: argparse.Namespace) -> AsyncGRPOTrainer:
    packing._flash_attn = lambda: SimpleNamespace(flash_attn_varlen_func=attention)
    async_grpo_trainer.get_peak_flops_per_device = lambda *words: None
    tokenizer = AutoTokenizer.from_pretrained(TINY)
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    data = rows(args.limit)
    found = holdfast.trl.async_rollouts(
        *rollout(args),
        journal=args.journal,
        rows=data,
        log_requests=True,
        report=print,
    )
    trainer = AsyncGRPOTrainer(
        model=str(TINY),
        args=AsyncGRPOConfig(
            output_dir=str(args.out),
            per_device_train_batch_size=args.rows,
            gradient_accumulation_steps=2,
            num_generations=args.samples,
            max_steps=args.steps,
            num_train_epochs=args.epochs,
            save_steps=args.save_steps,
            learning_rate=args.learning_rate,
            max_completion_length=160,
            max_staleness=args.max_staleness,
            max_inflight_tasks=16,
            token_budget=args.token_budget,
            logging_steps=1,
            report_to=[],
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            disable_tqdm=True,
            seed=0,
        ),
        processing_class=tokenizer,
        train_dataset=data,
        rollout_worker=found.worker,
        weight_transfer=found.weight_transfer,
        callbacks=[found.callback],
    )
    trainer.train(resume_from_checkpoint=newest_checkpoint(args.out))
    return trainer


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--journal", type=Path, required=True)
    parser.add_argument("--history", type=Path)
    parser.add_argument("--steps", type=int, default=-1)
    parser.add_argument("--epochs", type=float, default=1)
    parser.add_argument("--rows", type=int, default=3)
    parser.add_argument("--samples", type=int, default=5)
    parser.add_argument("--save-steps", type=int, default=2)
    parser.add_argument("--limit", type=int, default=512)
    parser.add_argument("--token-budget", type=int, default=0)
    parser.add_argument("--stragglers", type=int)
    parser.add_argument("--unrewarded", action="store_true")
    parser.add_argument("--max-staleness", type=int, default=100)
    parser.add_argument("--learning-rate", type=float, default=6e-4)
    return parser.parse_args()


if __name__ == "__main__":
    if plan := os.environ.get("HOLDFAST_CRASH"):
        crash_points.arm(plan)
    words = parse()
    if words.history:
        note_history(words.history)
    for line in train(words).state.log_history:
        print({key: line[key] for key in ("reward", "ratio", "kl") if key in line})
