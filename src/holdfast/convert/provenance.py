"""Keeps the parts of a sample that a format has no field for. They are stored beside the data,
under `KEY`.

Tokens, masks, logprobs and rewards are never among them. A reader takes these from the format's own
fields, so that changes there are seen.
"""

from collections.abc import Mapping, Sequence

import msgspec

from holdfast.records.errors import UsageError
from holdfast.records.samples.sample import Sample

KEY = "holdfast"
_OWN = ("token_ids", "loss_mask", "logprobs", "reward")
Fields = dict[str, object]


def provenance_of(sample: Sample) -> Fields:
    """Returns identity, outcome, versions, turns and step rewards of the sample, as plain
    values."""
    return {
        name: msgspec.to_builtins(getattr(sample, name))
        for name in sample.__struct_fields__
        if name not in _OWN
    }


def restored(
    provenance: object,
    *,
    token_ids: Sequence[int],
    loss_mask: Sequence[int],
    logprobs: Sequence[float],
    reward: float | None,
) -> Sample:
    """Returns the sample with this provenance, tokens, mask, logprobs and reward. Raises
    `UsageError` if the provenance is not Holdfast's."""
    if not isinstance(provenance, Mapping):
        raise UsageError(
            f"a row has no {KEY!r} beside its tokens: only what holdfast.convert wrote is read back"
        )
    fields = dict(provenance) | {
        "token_ids": list(token_ids),
        "loss_mask": list(loss_mask),
        "logprobs": list(logprobs),
        "reward": reward,
    }
    try:
        return msgspec.convert(fields, Sample)
    except msgspec.ValidationError as error:
        raise UsageError(f"the {KEY!r} of a row is none of ours: {error}") from error
