"""The model's own forward pass computes one sequence at a time, with its own attention and head.

All other ways to compute the model are compared with this pass. In float32, this pass decides
whether the engine or the trainer is wrong. The model is loaded as transformers creates it, and is
in evaluation mode, because an engine samples without dropout and router noise.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import takewhile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from holdfast.records.errors import UsageError
from holdfast.records.samples.nearness import Gap, gap_between, is_as_near
from holdfast.training.packing.rows import PackedRow, TokenSequence, pack
from holdfast.training.packing.tensors import to_tensor

SHORTEST = 16
"""Beginnings of at least this many tokens are compared with longer sequences."""
_PERFECT = Gap(1, 0.0, (0.0, 0.0, 0.0), 0.0)


@contextmanager
def no_progress_bars() -> Iterator[None]:
    """Hides the progress bars that transformers draws on stderr when it reads or writes weights."""
    from transformers.utils import logging

    were_enabled = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if were_enabled:
            logging.enable_progress_bar()


@no_progress_bars()
def load_model(folder: Path, dtype: torch.dtype) -> Any:
    """Loads the causal LM in `folder`, with the attention that transformers chooses for it."""
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM

    try:
        module = AutoModelForCausalLM.from_pretrained(
            folder,
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
            dtype=dtype,
        )
    except (OSError, ValueError, KeyError, ImportError, RuntimeError, SafetensorError) as error:
        first = next(iter(str(error).splitlines()), "")
        raise UsageError(f"{folder} cannot be trained: {first}") from error
    return module.eval()


def plain_logprobs(
    module: Any, row: PackedRow, temperature: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Returns (logprobs, entropies) of the trained tokens of a row. The row must hold only one
    sequence."""
    assert len(row.segments) == 1, "packed for one sequence at a time"
    device = module.get_output_embeddings().weight.device
    logits = module(
        input_ids=to_tensor(row.ids, device)[None],
        use_cache=False,
        logits_to_keep=to_tensor(row.predictors, device),
    ).logits[0]
    warmth = 1.0 if temperature is None else temperature[:, None]
    scaled = (logits.float() / warmth).log_softmax(-1)
    targets = to_tensor(row.targets, device)
    entropies = -(scaled.exp() * scaled).sum(-1)
    places = torch.arange(len(targets), device=device)
    return scaled[places, targets], entropies


def alone(sequence: TokenSequence) -> PackedRow:
    """Returns a row with only this sequence."""
    return pack([sequence], budget=len(sequence.ids))[0]


@torch.no_grad()
def logprobs_of(module: Any, sequence: TokenSequence) -> list[float]:
    """Returns the logprobs of the sequence's trained tokens."""
    values: list[float] = plain_logprobs(module, alone(sequence))[0].tolist()
    return values


def check_judge(module: Any, sequence: TokenSequence, logprobs: Sequence[float], name: str) -> None:
    """Raises `UsageError` for a model whose own forward pass cannot judge other ways to compute it.
    `logprobs` are the logprobs of the sequence in float32. They must be finite, and the same when
    computed again. Each beginning of the sequence must give the same logprobs by itself. `name` is
    the name of the model."""
    if not is_as_near(gap_between(logprobs, logprobs), _PERFECT):
        raise UsageError(f"{name} cannot be trained: its own forward pass gives NaN or infinity")
    powers = (1 << power for power in range(SHORTEST.bit_length() - 1, 64))
    sizes = takewhile(lambda size: size < len(sequence.ids), powers)
    whole = dict(zip(sequence.trained, logprobs, strict=True))
    if all(_agrees(module, sequence, size, whole) for size in sizes):
        return
    raise UsageError(f"{name} cannot be trained: {_why_unsteady(module, sequence)}")


def _agrees(module: Any, sequence: TokenSequence, size: int, whole: dict[int, float]) -> bool:
    """Returns whether the first `size` tokens of the sequence have the same logprobs by themselves
    as in the longer sequence."""
    trained = [offset for offset in sequence.trained if offset < size]
    own = logprobs_of(module, TokenSequence(sequence.ids[:size], trained))
    return is_as_near(gap_between(own, [whole[offset] for offset in trained]), _PERFECT)


def _why_unsteady(module: Any, sequence: TokenSequence) -> str:
    """Returns why the logprobs are not steady, for example because later tokens change the logprobs
    of earlier ones. Searches for the longest sequence that does not change the logprobs of its
    beginning."""
    first = TokenSequence(sequence.ids[: SHORTEST // 2], list(range(1, SHORTEST // 2)))

    def is_steady(size: int) -> bool:
        whole = logprobs_of(module, TokenSequence(sequence.ids[:size], first.trained))
        return _agrees(module, first, SHORTEST // 2, dict(zip(first.trained, whole, strict=True)))

    if not is_steady(SHORTEST // 2):
        return "the same tokens do not give the same logprobs twice"
    if not is_steady(SHORTEST):
        return "later tokens change the logprobs of earlier ones, so it is not a causal LM"
    low, high = SHORTEST, len(sequence.ids)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if is_steady(middle) else (low, middle)
    return (
        f"in sequences of more than {low} tokens, later tokens change the logprobs of earlier ones "
        "(its encoding of positions depends on the length), so no engine samples what would be "
        f"trained; up to {low} tokens it can be trained: --row-tokens {low}"
    )
