"""One variant of `training_gpu`, in a process of its own.

Told so on its standard input, it prepares (loads, compiles, runs once), and says `ready`; told so
again, it measures. What it measured is a line of JSON.
"""

import argparse
import json
import os
import random
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from training_gpu_check import check
from transformers import AttentionInterface, AutoModelForCausalLM, Qwen2Config
from transformers.utils import logging

from holdfast.training.batch import TrainedSequence
from holdfast.training.objective.diagnostics import Diagnostics
from holdfast.training.objective.objective import PRESETS
from holdfast.training.packing.rows import TokenSequence, pack
from holdfast.training.packing.tensors import to_tensor
from holdfast.training.settings import Lora, OptimizerSettings, TrainerSettings
from holdfast.training.trainer import Trainer

SHAPES = {
    "0.5B": {"hidden_size": 896, "num_hidden_layers": 24, "num_attention_heads": 14,
             "num_key_value_heads": 2, "intermediate_size": 4864, "tie_word_embeddings": True},
    "1.5B": {"hidden_size": 1536, "num_hidden_layers": 28, "num_attention_heads": 12,
             "num_key_value_heads": 2, "intermediate_size": 8960, "tie_word_embeddings": True},
}  # fmt: skip
VOCABULARY = 151_936
Step = Callable[[list[TokenSequence]], None]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", help="SIZE:ROW:VARIANT, or SIZE,… to be made")
    parser.add_argument("folder", type=Path, help="where the models are kept")
    parser.add_argument("--profile", action="store_true", help="kernels by time, too")
    args = parser.parse_args()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    if ":" not in args.part:
        for size in args.part.split(","):
            _make(size, args.folder / size)
        print(json.dumps({"made": args.part}), flush=True)
        return
    sys.stdin.readline()
    size, row, variant = args.part.split(":")
    if variant == "check":
        check("network")
        return
    _measure(size, int(row), variant, folder=args.folder / size, profile=args.profile)


def _measure(size: str, row: int, variant: str, *, folder: Path, profile: bool) -> None:
    began = time.perf_counter()
    kind, _, work = variant.partition("_")
    step, network = VARIANTS[kind](folder, row, work)
    parameters = sum(p.numel() for p in network.parameters())
    count = 4 if kind == "padded" else 8 if row <= 16_384 else 5
    batches = [_sequences(row, seed, shared=work == "shared") for seed in range(count)]
    _run(step, batches[:1] if kind == "padded" else batches)
    torch.cuda.empty_cache()  # Others prepare, too.
    print(json.dumps({"ready": round(time.perf_counter() - began, 1)}), flush=True)
    sys.stdin.readline()
    # Memory of all sizes is allocated here, and then found again.
    _run(step, batches[:1] if kind == "padded" else batches)
    torch.cuda.reset_peak_memory_stats()
    issued, seconds = _run(step, batches)
    rate = sum(len(s.ids) for batch in batches for s in batch) / seconds
    work_per_token = (4 if work == "lora" else 6) * parameters
    found = {
        "tokens_per_s": round(rate),
        "ceiling_share": round(work_per_token * rate / _ceiling(), 3),
        "peak_gib": round(torch.cuda.max_memory_allocated() / 2**30, 1),
        "ms_per_step": round(1000 * seconds / count, 1),
        "host_ms_per_step": round(1000 * issued / count, 1),
    }
    print(json.dumps(found), flush=True)
    if profile:
        _print_kernels(lambda: [step(batch) for batch in batches[:2]])


def _run(step: Step, batches: list[list[TokenSequence]]) -> tuple[float, float]:
    """Seconds until all is issued, and until all is done."""
    began = time.perf_counter()
    for batch in batches:
        step(batch)
    issued = time.perf_counter() - began
    torch.cuda.synchronize()
    return issued, time.perf_counter() - began


def _make(size: str, folder: Path) -> None:
    config = Qwen2Config(vocab_size=VOCABULARY, **SHAPES[size])
    with torch.device("cuda"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(folder)
    del model
    torch.cuda.empty_cache()


def _ours(folder: Path, row: int, work: str) -> tuple[Step, torch.nn.Module]:
    """What `Trainer.step` does with sequences, from packing to the optimizer."""
    settings = TrainerSettings(PRESETS["grpo"], OptimizerSettings(), row_tokens=row)
    trainer = Trainer(
        folder,
        settings,
        device="cuda",
        dtype=torch.bfloat16,
        lora=Lora() if work == "lora" else None,
    )
    assert not trainer.network.why_sequential, trainer.network.why_sequential
    if trainer.network.why_slow:
        print(json.dumps({"why_slow": trainer.network.why_slow}), flush=True)

    def step(sequences: list[TokenSequence]) -> None:
        weight = 1 / sum(len(s.trained) for s in sequences)
        trained = [
            TrainedSequence(
                s, [-12.0] * len(s.trained), [1.0] * len(s.trained), [1.0] * len(s.trained), weight
            )
            for s in sequences
        ]
        rows = [row for (row,) in trainer._deal(trained)]
        known = trainer.computation.known_logprobs(rows)
        trainer.computation.backward(rows, known, Diagnostics())
        trainer.optimizer.update(1e-6)

    return step, trainer.network.module


def _hand(folder: Path, row: int, work: str) -> tuple[Step, torch.nn.Module]:
    """A loop that somebody who knows what is fast would write for this model alone."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention
    from torch.utils.checkpoint import checkpoint

    def attend(module: Any, q: Any, k: Any, v: Any, _: Any, **more: Any) -> tuple[Any, None]:
        found = flex_attention(
            q, k, v, block_mask=more["documents"], scale=more["scaling"], enable_gqa=True
        )
        return found.transpose(1, 2).contiguous(), None

    AttentionInterface.register("hand", attend)
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.bfloat16, attn_implementation="hand"
    ).cuda()
    model.train()
    for layer in model.model.layers:
        layer.compile()
    make_mask = torch.compile(create_block_mask)
    documents = torch.zeros(row, dtype=torch.int64, device="cuda")

    def seen(_b: Any, _h: Any, q: Any, k: Any) -> Any:
        return (q >= k) & (documents[q] == documents[k])

    head = torch.compile(_losses, dynamic=True) if work == "fused" else _losses
    update = _master_update(list(model.parameters()))
    device = torch.device("cuda")

    def step(sequences: list[TokenSequence]) -> None:
        (packed,) = pack(sequences, budget=row, share=False)
        rest = row - len(packed.ids)
        lengths = [s.end - s.start for s in packed.segments] + [rest]
        numbers = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths))
        documents.copy_(to_tensor(numbers, device))
        hidden = model.model(
            input_ids=to_tensor(packed.ids + [0] * rest, device)[None],
            position_ids=to_tensor([*packed.positions, *range(rest)], device)[None],
            documents=make_mask(seen, None, None, row, row, device="cuda"),
            use_cache=False,
        ).last_hidden_state[0]
        hidden = hidden[to_tensor(packed.predictors, device)]
        targets = to_tensor(packed.targets, device)
        total = torch.zeros((), device="cuda")
        for start in range(0, len(targets), 2048):
            part = slice(start, start + 2048)
            total = total + checkpoint(
                head, hidden[part], model.lm_head.weight, targets[part], use_reentrant=False
            )
        (total / len(targets)).backward()  # type: ignore[no-untyped-call]
        update()

    return step, model


def _losses(hidden: Any, weight: Any, targets: Any) -> Any:
    logits = (hidden @ weight.T).float()
    return torch.nn.functional.cross_entropy(logits, targets, reduction="sum")


def _padded(folder: Path, row: int, work: str) -> tuple[Step, torch.nn.Module]:
    del row, work
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.bfloat16, attn_implementation="sdpa"
    ).cuda()
    model.train()
    update = _master_update(list(model.parameters()))

    def step(sequences: list[TokenSequence]) -> None:
        for start in range(0, len(sequences), 4):
            part = sequences[start : start + 4]
            width = max(len(s.ids) for s in part)
            rows = [[*s.ids, *([0] * (width - len(s.ids)))] for s in part]
            lengths = torch.tensor([len(s.ids) for s in part], device="cuda")
            ids = torch.tensor(rows, device="cuda")
            mask = torch.arange(width, device="cuda")[None] < lengths[:, None]
            logits = model(input_ids=ids, attention_mask=mask.long(), use_cache=False).logits
            losses = torch.nn.functional.cross_entropy(
                logits[:, :-1].flatten(0, 1).float(), ids[:, 1:].flatten(), reduction="none"
            )
            loss = (losses * mask[:, 1:].flatten()).mean()
            loss.backward()  # type: ignore[no-untyped-call]
        update()

    return step, model


VARIANTS = {"ours": _ours, "hand": _hand, "padded": _padded}


def _master_update(parameters: list[Any]) -> Callable[[], None]:
    """AdamW over float32 copies, by lists of tensors."""
    copies = [p.detach().float().clone() for p in parameters]
    adamw = torch.optim.AdamW(copies, lr=1e-6, weight_decay=0.0, fused=True)

    @torch.no_grad()
    def update() -> None:
        gradients = [torch.empty_like(copy) for copy in copies]
        torch._foreach_copy_(gradients, [p.grad for p in parameters])
        for p, copy, gradient in zip(parameters, copies, gradients, strict=True):
            copy.grad, p.grad = gradient, None
        torch.nn.utils.clip_grad_norm_(copies, 1.0)
        adamw.step()
        torch._foreach_copy_(parameters, copies)
        adamw.zero_grad(set_to_none=True)

    return update


def _sequences(budget: int, seed: int, *, shared: bool) -> list[TokenSequence]:
    """As many as fit into a row without sharing."""
    chance = random.Random(seed)
    draw = partial(_draw, chance, budget=budget, shared=shared)
    found: list[TokenSequence] = []
    size = 0
    for family, group in enumerate(iter(draw, None)):
        cost = sum(len(ids) for ids, _ in group)
        if size + cost > budget:
            break
        found += [TokenSequence(ids, list(range(start, len(ids))), family) for ids, start in group]
        size += cost
    return found


def _draw(chance: random.Random, *, budget: int, shared: bool) -> list[tuple[list[int], int]]:
    """Token ids, and where training begins."""
    length = min(max(int(chance.lognormvariate(6.2, 0.9)), 64), 4096)
    if not shared:
        return [(_tokens(chance, length), 1)]
    length = min(length, budget // 32)
    prompt = _tokens(chance, length)
    return [(prompt + _tokens(chance, length), length) for _ in range(8)]


def _tokens(chance: random.Random, length: int) -> list[int]:
    return [chance.randrange(VOCABULARY) for _ in range(length)]


def _ceiling() -> float:
    """Operations per second of a large matrix product, here and now."""
    left, right = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    times = []
    for _ in range(13):
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(5):
            left @ right
        torch.cuda.synchronize()
        times.append((time.perf_counter() - began) / 5)
    return 2 * 8192**3 / sorted(times[3:])[5]


def _print_kernels(work: Callable[[], Any]) -> None:
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as found:
        work()
        torch.cuda.synchronize()
    kernels = [e for e in found.key_averages() if e.self_device_time_total > 0]
    kernels = [e for e in kernels if str(e.device_type).endswith("CUDA")]
    kernels.sort(key=lambda e: -e.self_device_time_total)
    total = sum(e.self_device_time_total for e in kernels) / 2000
    lines = [
        f"{e.self_device_time_total / 2000:.2f}ms x{e.count // 2} {e.key[:70]}"
        for e in kernels[:22]
    ]
    print(json.dumps({"kernel_ms_per_step": round(total, 1), "kernels": lines}), flush=True)


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    main()
