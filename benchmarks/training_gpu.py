"""The trainer on one GPU, against a hand-written packed loop and a padded one, in the same run.

    python benchmarks/training_gpu.py [--size 0.5B|1.5B] [--row 16384] [--compile] [--shared]

Random weights in Qwen2's shapes, a vocabulary of 152k, bf16, AdamW, lognormal lengths. Prints
tokens per second, the share of the measured matrix ceiling, and the peak memory of each variant.
"""

import argparse
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, Qwen2Config
from transformers.utils import logging

from holdfast.training.model.network import Network
from holdfast.training.model.optimizer import Optimizer
from holdfast.training.packing.rows import PackedRow, TokenSequence, pack
from holdfast.training.settings import OptimizerSettings

SHAPES = {
    "0.5B": {"hidden_size": 896, "num_hidden_layers": 24, "num_attention_heads": 14,
             "num_key_value_heads": 2, "intermediate_size": 4864, "tie_word_embeddings": True},
    "1.5B": {"hidden_size": 1536, "num_hidden_layers": 28, "num_attention_heads": 12,
             "num_key_value_heads": 2, "intermediate_size": 8960, "tie_word_embeddings": True},
}  # fmt: skip
VOCABULARY = 151_936
STEPS, WARM_UP = 6, 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", choices=SHAPES, default="0.5B")
    parser.add_argument("--row", type=int, default=16_384)
    parser.add_argument("--variants", default="ours,compiled,shared,padded")
    args = parser.parse_args()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    ceiling = _ceiling()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {args.size}, {args.row}")
    print(f"matrix ceiling {ceiling / 1e12:.0f} TFLOP/s")
    with tempfile.TemporaryDirectory() as folder:
        config = Qwen2Config(vocab_size=VOCABULARY, **SHAPES[args.size])
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
        parameters = sum(p.numel() for p in model.parameters())
        model.save_pretrained(folder)
        del model
        for variant in args.variants.split(","):
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
            try:
                rate, share = _measure(variant, Path(folder), args.row, parameters, ceiling)
            except torch.OutOfMemoryError:
                print(f"{variant:<10} out of memory")
                continue
            peak = torch.cuda.max_memory_allocated() / 2**30
            print(
                f"{variant:<10} {rate:>9,.0f} tokens/s  {share:.0%} of the ceiling  {peak:.0f} GiB"
            )


def _measure(
    variant: str, folder: Path, row: int, parameters: int, ceiling: float
) -> tuple[float, float]:
    network = Network(folder, device="cuda", dtype=torch.bfloat16, compiled=variant != "ours")
    assert not network.why_sequential, network.why_sequential
    optimizer = Optimizer(network.parameters, OptimizerSettings())
    rows = [_rows(row, seed, shared=variant == "shared") for seed in range(STEPS)]
    step = _padded if variant == "padded" else _packed
    if variant == "padded":
        network.module.set_attn_implementation("sdpa")
    for number in range(WARM_UP):
        step(network, rows[number % STEPS])
        optimizer.update(1e-6)
    torch.cuda.synchronize()
    began = time.perf_counter()
    for packed in rows:
        step(network, packed)
        optimizer.update(1e-6)
    torch.cuda.synchronize()
    seconds = time.perf_counter() - began
    tokens = sum(_sampled(packed) for packed in rows)
    return tokens / seconds, 6 * parameters * tokens / seconds / ceiling


def _sampled(packed: "tuple[PackedRow, list[TokenSequence]]") -> int:
    """Tokens of the sequences, counted as if nothing was shared."""
    return sum(len(sequence.ids) for sequence in packed[1])


def _rows(budget: int, seed: int, *, shared: bool) -> "tuple[PackedRow, list[TokenSequence]]":
    chance = random.Random(seed)
    sequences: list[TokenSequence] = []
    size = 0
    while True:
        length = min(max(int(chance.lognormvariate(6.2, 0.9)), 64), 4096)
        if shared:
            length = min(length, budget // 18)
            prompt = [chance.randrange(VOCABULARY) for _ in range(length)]
            new = [
                TokenSequence(
                    prompt + [chance.randrange(VOCABULARY) for _ in range(length)],
                    list(range(length, 2 * length)),
                    len(sequences),
                )
                for _ in range(8)
            ]
            cost = 9 * length
        else:
            ids = [chance.randrange(VOCABULARY) for _ in range(length)]
            new, cost = [TokenSequence(ids, list(range(1, length)), len(sequences))], length
        if size + cost > budget:
            break
        sequences += new
        size += cost
    (row,) = pack(sequences, budget=budget)
    return row, sequences


def _packed(network: Network, packed: "tuple[PackedRow, list[TokenSequence]]") -> None:
    row, _ = packed
    logprobs, _ = network.logprobs(row, torch.ones(len(row.targets), device="cuda"))
    (-logprobs.mean()).backward()  # type: ignore[no-untyped-call]


def _padded(network: Network, packed: "tuple[PackedRow, list[TokenSequence]]") -> None:
    """As TRL's trainer has it: a few sequences at a time, padded to the longest, full logits."""
    _, sequences = packed
    module: Any = network.module
    for start in range(0, len(sequences), 4):
        part = sequences[start : start + 4]
        width = max(len(s.ids) for s in part)
        ids = torch.zeros(len(part), width, dtype=torch.long, device="cuda")
        mask = torch.zeros_like(ids)
        for n, sequence in enumerate(part):
            ids[n, : len(sequence.ids)] = torch.tensor(sequence.ids)
            mask[n, : len(sequence.ids)] = 1
        logits = module(input_ids=ids, attention_mask=mask, use_cache=False).logits[:, :-1]
        logprobs = torch.nn.functional.cross_entropy(
            logits.flatten(0, 1).float(), ids[:, 1:].flatten(), reduction="none"
        )
        loss = (logprobs * mask[:, 1:].flatten()).sum() / mask.sum()
        loss.backward()  # type: ignore[no-untyped-call]


def _ceiling() -> float:
    left, right = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    timed: Callable[[], Any] = lambda: left @ right  # noqa: E731
    for _ in range(3):
        timed()
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(10):
        timed()
    torch.cuda.synchronize()
    return 10 * 2 * 8192**3 / (time.perf_counter() - began)


if __name__ == "__main__":
    main()
