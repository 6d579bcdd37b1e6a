"""The trainer on one CPU thread: packed against padded, shared against packed, and by hand.

The model that comes with Holdfast, in float32. Padded is as TRL's trainer has it: eight sequences
at a time, in the order in which they come, padded to the longest. The hand-written loop gets the
trainer's rows as tensors, with nothing left to look up, and does the rest itself: attention
sequence by sequence, the head, GRPO's clipped loss, the backward pass, clipping, AdamW. It holds
the logits of a row, which a vocabulary of 1,024 allows. CPU seconds; the sides take turns.
"""

import json
import math
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from result import Result
from torch import Tensor
from torch.nn import functional
from transformers import AttentionInterface, AutoModelForCausalLM, LlamaConfig
from transformers.utils import logging

from holdfast.embedded.model.files import TINY
from holdfast.records.samples.sample import Sample
from holdfast.training.batch import TrainedSequence, TrainingGroup, group_samples, sequences_of
from holdfast.training.model.network import Network
from holdfast.training.objective.objective import PRESETS
from holdfast.training.packing.rows import PackedRow, TokenSequence, pack
from holdfast.training.settings import OptimizerSettings, TrainerSettings
from holdfast.training.trainer import Trainer

ROUNDS = 3
VOCABULARY = 1024
ROW_TOKENS = 8192
PADDED_AT_ONCE = 8
RATE = 1e-5
GROUPS, SAMPLES = 4, 8
LARGE_VOCABULARY, LARGE_TOKENS = 151_936, 2048


def measure() -> list[Result]:
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    torch.set_num_threads(1)
    return [_packed_and_padded(), _shared_and_packed(), _step_and_loop(), _memory()]


def _compare(ours: Callable[[], None], theirs: Callable[[], None]) -> tuple[float, float, float]:
    """The median of theirs / ours over rounds, and the CPU seconds of both."""
    ours()
    theirs()
    times: list[tuple[float, float]] = []
    for number in range(ROUNDS):
        sides = (ours, theirs) if number % 2 else (theirs, ours)
        taken = {side: _cpu(side) for side in sides}
        times.append((taken[ours], taken[theirs]))
    ratio = statistics.median(slow / fast for fast, slow in times)
    return (
        ratio,
        statistics.median(fast for fast, _ in times),
        statistics.median(slow for _, slow in times),
    )


def _cpu(work: Callable[[], None]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


# --- packed, padded, shared


def _packed_and_padded() -> Result:
    chance = random.Random(1)
    sequences = [_sequence(chance, prompt=(), length=_long_tailed(chance)) for _ in range(40)]
    network = Network(TINY)
    padded = AutoModelForCausalLM.from_pretrained(TINY, dtype=torch.float32)
    rows = pack(sequences, budget=ROW_TOKENS, share=False)
    ratio, ours, theirs = _compare(
        lambda: _train_rows(network, rows), lambda: _train_padded(padded, sequences)
    )
    tokens = sum(len(sequence.ids) for sequence in sequences)
    name = "training: tokens/s packed / padded, long-tailed lengths"
    return Result(name, ratio, "×", "≥ 1.8", _rates(tokens, ours, theirs))


def _shared_and_packed() -> Result:
    chance = random.Random(2)
    sequences = []
    for family in range(GROUPS):
        prompt = [chance.randrange(3, VOCABULARY) for _ in range(160)]
        sequences += [
            _sequence(chance, prompt=prompt, length=320, family=family) for _ in range(SAMPLES)
        ]
    network = Network(TINY)
    shared = pack(sequences, budget=ROW_TOKENS)
    packed = pack(sequences, budget=ROW_TOKENS, share=False)
    ratio, ours, theirs = _compare(
        lambda: _train_rows(network, shared), lambda: _train_rows(network, packed)
    )
    tokens = sum(len(sequence.ids) for sequence in sequences)
    name = "training: tokens/s shared / packed, 8 samples, prompt = reply"
    return Result(name, ratio, "×", "≥ 1.5", _rates(tokens, ours, theirs))


def _rates(tokens: int, ours: float, theirs: float) -> str:
    return f"{tokens / ours:,.0f} tokens per CPU second, {tokens / theirs:,.0f}"


def _long_tailed(chance: random.Random) -> int:
    return min(max(int(chance.lognormvariate(5.2, 0.9)), 16), 2000)


def _sequence(
    chance: random.Random, *, prompt: Sequence[int], length: int, family: int = 0
) -> TokenSequence:
    ids = [*prompt, *(chance.randrange(3, VOCABULARY) for _ in range(length - len(prompt)))]
    return TokenSequence(ids, list(range(max(len(prompt), 1), length)), family)


def _train_rows(network: Network, rows: Sequence[PackedRow]) -> None:
    network.module.zero_grad()
    for row in rows:
        logprobs, _ = network.logprobs(row, torch.ones(len(row.targets)))
        (-logprobs.sum()).backward()  # type: ignore[no-untyped-call]


def _train_padded(model: Any, sequences: Sequence[TokenSequence]) -> None:
    model.zero_grad()
    for start in range(0, len(sequences), PADDED_AT_ONCE):
        part = sequences[start : start + PADDED_AT_ONCE]
        width = max(len(sequence.ids) for sequence in part)
        ids = torch.zeros(len(part), width, dtype=torch.long)
        mask = torch.zeros_like(ids)
        for number, sequence in enumerate(part):
            ids[number, : len(sequence.ids)] = torch.tensor(sequence.ids)
            mask[number, : len(sequence.ids)] = 1
        logits = model(input_ids=ids, attention_mask=mask, use_cache=False).logits[:, :-1]
        losses = functional.cross_entropy(
            logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="none"
        )
        (losses * mask[:, 1:].flatten()).sum().backward()  # type: ignore[no-untyped-call]


# --- a step, and the same by hand


def _step_and_loop() -> Result:
    groups = _groups(random.Random(3))
    settings = TrainerSettings(
        PRESETS["grpo"], OptimizerSettings(learning_rate=RATE), row_tokens=ROW_TOKENS
    )
    trainer = Trainer(TINY, settings)
    loop = _HandWritten(sequences_of(groups, settings.objective))
    ratio, ours, theirs = _compare(lambda: _step(trainer, groups), loop.step)
    name = "training: a trainer's step / a hand-written loop"
    detail = f"{ours:.2f} s of CPU, {theirs:.2f} s by hand; {loop.tokens:,} tokens"
    return Result(name, 1 / ratio, "×", "≤ 1.15", detail)


def _step(trainer: Trainer, groups: Sequence[TrainingGroup]) -> None:
    trainer.step(groups)


def _groups(chance: random.Random) -> list[TrainingGroup]:
    """Prompts that have nothing in common: what is shared is measured elsewhere."""
    samples = []
    for number in range(GROUPS * SAMPLES):
        length = min(_long_tailed(chance), 1000)
        prompt = max(length // 3, 1)
        samples.append(
            Sample(
                task=f"t{number // SAMPLES}",
                group=f"t{number // SAMPLES}",
                sample=number % SAMPLES,
                branch=0,
                status="completed",
                reason="",
                token_ids=[chance.randrange(3, VOCABULARY) for _ in range(length)],
                loss_mask=[int(place >= prompt) for place in range(length)],
                logprobs=[-math.log(VOCABULARY) if p >= prompt else 0.0 for p in range(length)],
                version_spans=[],
                reward=float(number % SAMPLES < 3),
            )
        )
    return group_samples(samples)


class _Row:
    """What a loop needs of a row."""

    def __init__(self, row: PackedRow, sequences: Sequence[TrainedSequence]):
        places = list(zip((sequences[s] for s in row.sequences), row.indices, strict=True))
        self.ids = torch.tensor([row.ids])
        self.positions = torch.tensor([row.positions])
        self.widths = [segment.end - segment.start for segment in row.segments]
        self.predictors = torch.tensor(row.predictors)
        self.targets = torch.tensor(row.targets)
        self.recorded = torch.tensor([s.engine_logprobs[i] for s, i in places])
        self.advantages = torch.tensor([s.advantages[i] for s, i in places])
        self.weights = torch.tensor([s.weight for s, _ in places])


class _HandWritten:
    """The loop that somebody would write for one model and one loss."""

    def __init__(self, sequences: Sequence[TrainedSequence]):
        AttentionInterface.register("by_hand", _attend)
        self.model: Any = AutoModelForCausalLM.from_pretrained(
            TINY, dtype=torch.float32, attn_implementation="by_hand"
        )
        rows = pack([s.tokens for s in sequences], budget=ROW_TOKENS)
        self.rows = [_Row(row, sequences) for row in rows]
        self.tokens = sum(row.ids.numel() for row in self.rows)
        self._adamw = torch.optim.AdamW(self.model.parameters(), lr=RATE, weight_decay=0.0)

    def step(self) -> None:
        for row in self.rows:
            hidden = self.model.model(
                input_ids=row.ids, position_ids=row.positions, use_cache=False, widths=row.widths
            ).last_hidden_state[0]
            logits = self.model.lm_head(hidden[row.predictors])
            logprobs = -functional.cross_entropy(logits, row.targets, reduction="none")
            ratio = (logprobs - row.recorded).exp()
            gain = torch.minimum(ratio * row.advantages, ratio.clamp(0.8, 1.2) * row.advantages)
            (-(gain * row.weights).sum()).backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self._adamw.step()
        self._adamw.zero_grad(set_to_none=True)


def _attend(
    module: Any, query: Tensor, key: Tensor, value: Tensor, *_: Any, widths: list[int], **__: Any
) -> tuple[Tensor, None]:
    parts = (
        states.split(widths, dim=2)  # type: ignore[no-untyped-call]
        for states in (query, key, value)
    )
    found = [
        functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        for q, k, v in zip(*parts, strict=True)
    ]
    return torch.cat(found, dim=2).transpose(1, 2), None


# --- memory


def _memory() -> Result:
    """In a process of its own: the peak that a row adds to it, against its full logits."""
    done = subprocess.run(
        [sys.executable, __file__], capture_output=True, text=True, check=True
    ).stdout
    peak = json.loads(done) / 2**20
    logits = LARGE_TOKENS * LARGE_VOCABULARY * 4 / 2**20
    name = "training: peak memory of a row / its full logits"
    detail = f"{peak:,.0f} MB, {logits:,.0f} MB; {LARGE_TOKENS:,} tokens × {LARGE_VOCABULARY:,}"
    return Result(name, peak / logits, "×", "≤ 0.3", detail)


def _add_peak() -> int:
    """Bytes that one row adds to the peak of this process, forward and back."""
    logging.disable_progress_bar()
    torch.set_num_threads(1)
    chance = random.Random(4)
    config = LlamaConfig(
        vocab_size=LARGE_VOCABULARY, hidden_size=32, intermediate_size=64, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=2,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        AutoModelForCausalLM.from_config(config).save_pretrained(folder)
        network = Network(Path(folder))
    ids = [chance.randrange(LARGE_VOCABULARY) for _ in range(LARGE_TOKENS + 1)]
    (row,) = pack([TokenSequence(ids, list(range(1, len(ids))))], budget=len(ids))
    before = _peak()
    _train_rows(network, [row])
    return _peak() - before


def _peak() -> int:
    """Of this program alone: what `getrusage` tells begins with the peak of its parent."""
    (line,) = (
        line
        for line in Path("/proc/self/status").read_text().splitlines()
        if line.startswith("VmHWM")
    )
    return int(line.split()[1]) * 1024


if __name__ == "__main__":
    print(_add_peak())
