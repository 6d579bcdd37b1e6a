"""Verifies at start-up that a model which runs alone computes a sequence from its tokens only.

The same ids must give the same bits again after other ids were computed, and later tokens must not
affect earlier results. Then the quick ways are tried: the model's own memory, in blocks and token
by token. A sequence that is interrupted by another and continued from a copy must give the same
bits as an undisturbed one. Its numbers must be as close to those of the whole sequence as rounding
allows.
"""

import math
import random

import torch
from torch import Tensor

from holdfast.embedded.model.batched import Row
from holdfast.embedded.model.load import LoadedModel
from holdfast.embedded.model.sequential import STRIDE, SoloPasses
from holdfast.records.errors import UsageError

_TRIAL_TOKENS = 72
_STEPPED_TOKENS = 2 * STRIDE + 8
_DECODED_TOKENS = 11
"""The number of decoded tokens, chosen so that a block ends among them."""
_SLOTS = 3
_TOLERANCE = 2e-3
_FORGETTING = 0.05
_MIN_LATER_EFFECT = 1e-4
"""The least effect that counts. Rounding is far below it. A model that looks ahead is above it,
however small its weights.
"""


def check(model: LoadedModel) -> int:
    """Returns the stride that the model allows, or 0 for none. Raises `UsageError` if the model is
    not a causal LM, or does not give the same numbers twice."""
    chance = random.Random(0)
    length = min(_TRIAL_TOKENS, model.max_length)
    ids, other = ([chance.randrange(model.vocabulary) for _ in range(length)] for _ in range(2))
    passes = SoloPasses(model, slots=_SLOTS)
    try:
        whole = passes.logits(ids)
        half = length // 2
        ahead = passes.logits([*ids[:half], *other[half:]])
        passes.logits(other[: half + 1])
        again = passes.logits(ids)
    except Exception as error:
        raise _unservable(model, f"{type(error).__name__}: {error}".splitlines()[0]) from error
    if whole.shape != (length, model.vocabulary):
        raise _unservable(model, f"it gives numbers of the shape {list(whole.shape)}, not logits")
    if not torch.equal(whole, again):
        raise _unservable(
            model, "on this machine the same tokens do not give the same numbers twice"
        )
    if half and sees_later_tokens(whole[:half], ahead[:half]):
        raise _unservable(
            model, "it is not a causal LM: later tokens show in the results of earlier ones"
        )
    if not model.steady:
        return 0
    tolerance = _tolerance(passes, ids, other, whole)
    for stride in (STRIDE, 1):
        deviation = _logprob_error(
            passes, ids[:_STEPPED_TOKENS], other[:_STEPPED_TOKENS], whole, stride=stride
        )
        if deviation < tolerance:
            return stride
    return 0


def _tolerance(passes: SoloPasses, ids: list[int], other: list[int], whole: Tensor) -> float:
    """Returns a tolerance that allows rounding and is far below the effect of forgotten tokens.
    Results may be much alike, so that effect is measured."""
    changed = passes.logits([*other[:STRIDE], *ids[STRIDE:]])
    effects = _logprob_differences(whole, changed)[STRIDE : 2 * STRIDE]
    return min(_TOLERANCE, _FORGETTING * float(effects.median())) if len(effects) else _TOLERANCE


def sees_later_tokens(left: Tensor, right: Tensor) -> bool:
    """Returns whether later tokens affect the logits of earlier tokens. `left` and `right` are the
    logits [tokens, vocabulary] of the same tokens, followed by different tokens. Only a difference
    at most positions counts, because rounding may change the choice of experts at a few."""
    return not bool(_logprob_differences(left, right).median() < _MIN_LATER_EFFECT)


def _logprob_error(
    passes: SoloPasses, ids: list[int], other: list[int], whole: Tensor, *, stride: int
) -> float:
    """Returns the largest difference from the logprobs of the whole sequence. Returns infinity if
    the logprobs depend on how they are computed."""
    passes.stride = stride
    cut = max(1, len(ids) - _DECODED_TOKENS)
    try:
        alone = _run_continued(passes, ids, cut, kept=0, slot=0)
        outputs = [_run_interleaved(passes, ids, other, cut)]
        for kept in (cut - 1, cut // 2):  # once at a stored memory, once between two
            passes.cache.copy(0, 1, positions=kept)
            outputs.append(_run_continued(passes, ids, cut, kept=kept, slot=1))
    except Exception:  # its memory cannot be used in this way, which this check had to find out
        return math.inf
    finally:
        for slot in range(_SLOTS):
            passes.cache.clean(slot)
    same = all(torch.equal(alone, logits) for logits in outputs)
    return float(_logprob_differences(alone, whole[cut - 1 : len(ids)]).max()) if same else math.inf


def _run_continued(passes: SoloPasses, ids: list[int], cut: int, *, kept: int, slot: int) -> Tensor:
    """Runs a prompt whose first `kept` tokens the slot holds already, then one token after another.
    Returns the logits after the prompt and after each token."""
    rows = [Row(token, slot, i) for i, token in enumerate(ids)]
    logits = [passes.run(rows[kept:cut], [cut - kept - 1])]
    logits += [passes.run([row], [0]) for row in rows[cut:]]
    return torch.cat(logits)


def _run_interleaved(passes: SoloPasses, ids: list[int], other: list[int], cut: int) -> Tensor:
    """Runs the sequence as `_run_continued` does, but stops in the middle of a block and then
    alternates with another sequence."""
    half = max(1, cut // 2)
    passes.run([Row(token, 2, i) for i, token in enumerate(ids[:half])], [half - 1])
    logits = [
        passes.run([Row(other[i - half], 1, i - half), Row(ids[i], 2, i)], [1])
        for i in range(half, len(ids))
    ]
    return torch.cat(logits[cut - 1 - half :])


def _logprob_differences(left: Tensor, right: Tensor) -> Tensor:
    """Returns the largest difference of the logprobs at each position."""
    return (left.log_softmax(-1) - right.log_softmax(-1)).abs().amax(-1)


def _unservable(model: LoadedModel, why: str) -> UsageError:
    kind = getattr(model.network.config, "model_type", "?")
    return UsageError(f"{model.path} ({kind}) cannot be served: {why}")
