"""The trial finds which ways to compute a model's logprobs are right, before anything is trained.

The judge is the model's own forward pass in float32. It computes one sequence that is as long as
the longest of a run, and a few short ones that share beginnings. A faster way is used if its
logprobs are as near to the judge's as the logprobs of the model's own pass in the data type that is
trained (`nearness`).
"""

import math
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from msgspec import Struct, structs

from holdfast.embedded.model.load import longest_of
from holdfast.records.errors import UsageError
from holdfast.records.samples.nearness import FACTOR, Gap, explained, gap_between, is_as_near
from holdfast.training.model.memory import free_memory
from holdfast.training.model.plain import SHORTEST, check_judge, load_model, logprobs_of
from holdfast.training.packing.rows import PackedRow, TokenSequence, pack

WORK = {"cpu": 1e11, "cuda": 2e14}
"""The number of floating-point operations that one pass of the trial may take, which is a few
seconds of work."""
_SCORED = 512
"""About how many tokens of the long sequence are compared."""
_SHARED = 9
"""The number of tokens that the short sequences have in common with the long one."""


class Trial(Struct, frozen=True):
    """The sequences of a trial, and the exact logprobs of their trained tokens."""

    sequences: list[TokenSequence]
    exact: list[float]
    """The logprobs of all trained tokens, sequence by sequence."""
    length: int
    """The length of the longest sequence in the trial."""
    plain: Gap
    """The gap between the model's own pass in the trained data type and the exact logprobs."""
    longest: int
    """The length of the longest sequence that a run may have."""
    is_exact: bool = True
    """False if the float32 weights did not fit into memory. Then `exact` was computed by the
    model's own pass in its data type."""

    @property
    def limits(self) -> str:
        """What the trial could not cover, in words; "" if it covered everything."""
        parts = []
        if self.length < self.longest:
            parts.append(f"up to {self.length:,} tokens, of {self.longest:,} that one may have")
        if not self.is_exact:
            parts.append("not in float32, for which there is no memory")
        if not parts:
            return ""
        return f"sequences were tried out {', and '.join(parts)}: each step looks at the gap"

    @property
    def row(self) -> PackedRow:
        """All sequences in one row."""
        total = sum(len(sequence.ids) for sequence in self.sequences)
        return pack(self.sequences, budget=total)[0]

    def gap(self, logprobs: Sequence[float]) -> Gap:
        """Returns the gap between `logprobs`, in the order of `row`, and the exact logprobs."""
        row, values = self.row, iter(self.exact)
        known = {
            (number, index): next(values)
            for number, sequence in enumerate(self.sequences)
            for index in range(len(sequence.trained))
        }
        places = zip(row.sequences, row.indices, strict=True)
        return gap_between(logprobs, [known[place] for place in places])

    def accepts(self, gap: Gap) -> bool:
        return is_as_near(gap, self.plain)


def hold_trial(folder: Path, module: Any, *, longest: int) -> Trial:
    """Holds the trial of a loaded model, in the model's data type and on its device. `longest` is
    the largest number of tokens of a trajectory. Raises `UsageError` for a model that cannot be
    trained at all."""
    device, dtype = module.device, module.dtype
    longest = min(longest, _positions(module) or longest)
    length = _affordable(module, longest)
    while True:
        try:
            trial = _hold(folder, module, length, has_judge=_has_room(module))
            return structs.replace(trial, longest=longest)
        except torch.OutOfMemoryError:
            torch.cuda.empty_cache()
            if length <= SHORTEST:
                raise UsageError(
                    f"{folder} in {dtype} fills the memory of {device}: train a LoRA adapter "
                    "(--lora-rank 16), or a smaller model"
                ) from None
            length //= 2


def _hold(folder: Path, module: Any, length: int, *, has_judge: bool) -> Trial:
    sequences = _sequences(_vocabulary(module), length)
    is_same = module.dtype == torch.float32
    judge = module
    if has_judge and not is_same:
        judge = load_model(folder, torch.float32).to(module.device)
    exact = [logprobs_of(judge, sequence) for sequence in sequences]
    if has_judge or is_same:
        check_judge(judge, sequences[0], exact[0], f"{folder} ({module.config.model_type})")
    values = list(chain.from_iterable(exact))
    if not has_judge and not is_same:
        return Trial(sequences, values, length, _rounding(module), length, is_exact=False)
    own = exact if is_same else [logprobs_of(module, sequence) for sequence in sequences]
    plain = gap_between(list(chain.from_iterable(own)), values)
    return Trial(sequences, values, length, plain, length)


def _rounding(module: Any) -> Gap:
    """Returns the gap to expect from rounding in the model's data type. This gap is used if the
    exact logprobs are unknown."""
    mean = explained(str(module.dtype).removeprefix("torch.")) / FACTOR
    return Gap(1, mean, (mean, 3 * mean, 10 * mean), mean)


def _vocabulary(module: Any) -> int:
    return int(module.get_output_embeddings().weight.shape[0])


def _positions(module: Any) -> int | None:
    """Returns the largest number of positions that the model supports, or None if it is unknown.
    With dynamic RoPE, this number is larger than the length with which the model was trained."""
    text = module.config.get_text_config()
    rope = getattr(text, "rope_parameters", None) or {}
    stretch = rope.get("factor", 1.0) if rope.get("rope_type") == "dynamic" else 1.0
    positions = longest_of(text)
    return positions and int(positions * stretch)


def _has_room(module: Any) -> bool:
    """Returns whether memory has room for float32 weights in addition to the model."""
    free = free_memory(str(module.device))
    return free is None or 8 * sum(p.numel() for p in module.parameters()) < free


def _affordable(module: Any, longest: int) -> int:
    """Returns the length of the longest sequence whose pass costs no more than `WORK`."""
    text = module.config.get_text_config()
    weights = 2.0 * sum(p.numel() for p in module.parameters())
    pairs = 4.0 * int(text.num_hidden_layers) * int(text.hidden_size)
    work = WORK[module.device.type]
    # weights · n + pairs · n² = work
    size = (-weights + math.sqrt(weights**2 + 4 * pairs * work)) / (2 * pairs)
    return max(SHORTEST, min(longest, int(size)))


def _sequences(vocabulary: int, length: int) -> list[TokenSequence]:
    """Returns a long sequence and short ones. Two of the short ones begin like the long one."""
    numbers = [(7919 * n + 11) % vocabulary for n in range(max(length, 64))]
    spread = range(4 * SHORTEST, length, max(1, length // _SCORED))
    scored = sorted({*range(1, min(4 * SHORTEST, length)), *spread, length - 1})
    shared = numbers[: min(_SHARED, length)]
    short = [[*shared, *numbers[20:28]], numbers[30:47], shared]
    return [
        TokenSequence(numbers[:length], scored),
        *(TokenSequence(ids, list(range(1, len(ids)))) for ids in short if len(ids) <= length),
    ]
