"""Verifies at start-up, on this machine and with these weights, that batches change no bits.

The machine's libraries decide how a matrix product is computed, and no standard says that a row's
bits are independent of its place. So a trial runs the same tokens alone and beside others, in other
slots, decoded one by one and read at once, in passes of every width. A width with other bits is not
used. If the main width gives other bits, the model is `Unfit` to share its passes.
"""

import random
from typing import Any

import torch
from msgspec.structs import replace
from torch import Tensor

from holdfast.embedded.model import attention, verify_sequential
from holdfast.embedded.model.attention import BLOCK
from holdfast.embedded.model.batched import Passes, Row
from holdfast.embedded.model.load import LoadedModel
from holdfast.embedded.model.sequential import SoloPasses
from holdfast.records.errors import HoldfastError

_TRIAL_TOKENS = BLOCK + 6
_DECODED_TOKENS = 8
_TOLERANCE = 2e-3


class Unfit(HoldfastError):
    """The model's sequences must not share a pass. The message says why."""


def passes(model: LoadedModel, *, slots: int) -> Passes | SoloPasses:
    """Returns the passes to verify for a model: sequences one at a time if the model is known to
    need it, and batches otherwise."""
    return SoloPasses(model, slots=slots) if model.solo else Passes(model, slots=slots)


def verify(
    model: LoadedModel, tried: Passes | SoloPasses
) -> tuple[LoadedModel, Passes | SoloPasses]:
    """Returns the model and its verified passes. If the model is unfit to share passes, returns it
    marked to run alone, with passes for that. Raises `UsageError` if the model cannot be served in
    either way."""
    if isinstance(tried, Passes):
        try:
            check(model, tried)
        except Unfit as unfit:
            model.network.set_attn_implementation("eager")
            model = replace(model, why_solo=str(unfit))
            tried = SoloPasses(model, slots=tried.narrow)
        else:
            return model, tried
    tried.stride = verify_sequential.check(model)
    return model, tried


def check(model: LoadedModel, passes: Passes) -> None:
    """Adds the `passes.other_widths` that give the same bits to `passes.widths`. Raises `Unfit` if
    sequences must not share a pass."""
    chance = random.Random(0)
    length = min(_TRIAL_TOKENS, model.max_length)
    ids = [chance.randrange(model.vocabulary) for _ in range(length)]
    narrow = passes.narrow
    alone = _run_alone(model, passes, ids)
    _check_reference(model, alone[0], ids[: _prompt(ids)])
    if not _equal(alone, _run_crowded(passes, ids, slots=narrow, width=narrow)):
        raise Unfit(
            "on this machine its results depend on the other requests in the batch; "
            f"{_advice(alone[0].device)}"
        )
    good = [width for width in passes.other_widths if _same_bits(passes, ids, width, alone)]
    passes.widths = sorted((narrow, *good))


def _advice(device: torch.device) -> str:
    if device.type == "cpu":
        return f"try --threads 1 (now {torch.get_num_threads()}) or another --max-batch"
    return "run it on the CPU: set CUDA_VISIBLE_DEVICES to nothing"


def _same_bits(passes: Passes, ids: list[int], width: int, alone: list[Tensor]) -> bool:
    """Returns whether passes of this width give the same bits, both full and almost empty."""
    passes.widths = sorted((width, passes.narrow))
    crowded_logits = _run_crowded(passes, ids, slots=min(width, passes.narrow), width=width)
    return _equal(alone, crowded_logits + _run_crowded(passes, ids, slots=1, width=width))


def _prompt(ids: list[int]) -> int:
    """Returns how many tokens are read as a prompt. The rest is decoded one by one."""
    return max(1, len(ids) - _DECODED_TOKENS)


def _run_alone(model: LoadedModel, passes: Passes, ids: list[int]) -> list[Tensor]:
    """Runs the sequence alone. Returns the logits after the prompt and after each further token."""
    try:
        logits = _run_crowded(passes, ids, slots=1, width=passes.narrow)
    except Exception as error:
        raise _unfit(f"{type(error).__name__}: {error}".splitlines()[0]) from error
    if passes.layers_seen != model.layers:
        raise _unfit(f"{passes.layers_seen} of {model.layers} layers use it")
    return logits[0]


def _run_crowded(passes: Passes, ids: list[int], *, slots: int, width: int) -> list[list[Tensor]]:
    """Runs the sequence in several slots, with passes of `width` rows that the next slot's prompt
    fills up. Returns for each slot the same logits as `_run_alone` does for one."""
    length = _prompt(ids)
    queue = [Row(ids[i], slot, i) for slot in range(slots) for i in range(length)]
    by_slot: list[list[Tensor]] = [[] for _ in range(slots)]
    passing = [queue[start : start + width] for start in range(0, len(queue), width)]
    passing += [[Row(ids[i], slot, i) for slot in range(slots)] for i in range(length, len(ids))]
    for rows in passing:
        ends = [i for i, row in enumerate(rows) if row.position >= length - 1]
        logits = passes.run(rows, ends)
        for line, end in enumerate(ends):
            by_slot[rows[end].slot].append(logits[line].clone())
    return by_slot


def _equal(alone: list[Tensor], crowded: list[list[Tensor]]) -> bool:
    return all(
        torch.equal(expected, logits)
        for tensor in crowded
        for expected, logits in zip(alone, tensor, strict=True)
    )


def _check_reference(model: LoadedModel, ours: Tensor, ids: list[int]) -> None:
    """Compares `ours` with the result of transformers' own attention. Raises `Unfit` if they
    differ, or if transformers' attention looks at later tokens."""
    network: Any = model.network
    half = len(ids) // 2
    network.set_attn_implementation("eager")
    try:
        with torch.inference_mode():
            pair = torch.tensor([ids, [*ids[:half], *reversed(ids[half:])]], device=ours.device)
            reference, ahead = network(input_ids=pair, use_cache=False).logits
    finally:
        network.set_attn_implementation(attention.NAME)
    difference = float((ours.log_softmax(-1) - reference[-1].log_softmax(-1)).abs().max())
    if not difference < _TOLERANCE:
        raise _unfit(f"its logprobs are off by {difference:.3g}")
    if half and verify_sequential.sees_later_tokens(reference[:half], ahead[:half]):
        raise _unfit("its own looks at later tokens")


def _unfit(why: str) -> Unfit:
    return Unfit(f"it cannot run with this engine's attention: {why}")
