"""Converts samples to NeMo-RL's message logs and back. Written for NeMo-RL's main of August 2026.

A log is the messages of one branch, each with its `token_ids`. NeMo trains the assistant messages
that have `generation_logprobs`. NeMo concatenates the tokens of the messages, so the messages of a
branch together must have exactly the branch's tokens. Tokens that are sampled here but trained in
another branch get no logprobs here, and logprobs of 0 when they are read back. Placeholders are
left out, because NeMo counts every row in its baseline.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from holdfast.convert.checks import listed, narrowed, read_back, samples_for
from holdfast.convert.provenance import KEY, Fields, provenance_of, restored
from holdfast.convert.selection import (
    Branches,
    MissingReward,
    chosen,
    groups_of,
    response_start,
    rewarded_members,
    single_branch,
)
from holdfast.extras import needed_by
from holdfast.records.errors import NotTrainable
from holdfast.records.samples.sample import Sample

Decode = Callable[[Sequence[int]], str]
_TRAINER = "NeMo-RL"


def to_nemo(
    samples: Iterable[Sample],
    *,
    decode: Decode | None = None,
    mask_truncated: bool = False,
    missing_reward: str = MissingReward.REFUSE,
    branches: str = Branches.REFUSE,
    tensors: bool = False,
) -> list[Fields]:
    """Returns one row for each trajectory: `message_log`, `length`, `loss_multiplier`, `idx`, the
    reward, and the provenance in `extra_env_info`. `length` is the length of the prompt, by which
    NeMo finds the group of a row.

    With `mask_truncated`, truncated trajectories get a `loss_multiplier` of 0, but still count in
    the baseline, as with NeMo's own filter of overlong trajectories. With `tensors`, ids and
    logprobs are torch tensors, which NeMo's own code takes, instead of lists. `decode` makes the
    content of a message from its tokens. Without `decode`, contents are empty.
    """
    missing = chosen(MissingReward, "missing_reward", missing_reward)
    kept = chosen(Branches, "branches", branches)
    rows: list[Fields] = []
    for group in groups_of(samples_for("to_nemo", samples)):
        for member in rewarded_members(group, missing, trainer=_TRAINER):
            sample, _ = single_branch(member, kept, trainer=_TRAINER)
            assert sample.reward is not None, "members without one are left out"
            rows.append(
                {
                    "message_log": message_log(sample, decode=decode, tensors=tensors),
                    "length": response_start(sample),
                    "loss_multiplier": 0.0 if mask_truncated and sample.truncated else 1.0,
                    "idx": len(rows),
                    "task_name": sample.task,
                    "total_reward": narrowed(sample.reward, sample, trainer=_TRAINER),
                    "truncated": sample.truncated,
                    "extra_env_info": {KEY: provenance_of(sample)},
                }
            )
    return rows


def message_log(
    sample: Sample, *, decode: Decode | None = None, tensors: bool = False
) -> list[Fields]:
    """Returns the messages of one branch. Their ids, one message after the other, are the branch's
    tokens."""
    log: list[Fields] = []
    for start, end, is_sampled in _segments(sample):
        ids = sample.token_ids[start:end]
        message: Fields = {
            "role": "assistant" if is_sampled else "user" if not log else "environment",
            "content": "" if decode is None else decode(ids),
            "token_ids": ids,
        }
        if is_sampled and sample.loss_mask[start]:
            message["generation_logprobs"] = sample.logprobs[start:end]
        log.append(message)
    return [_as_tensors(message) for message in log] if tensors else log


def _segments(sample: Sample) -> list[tuple[int, int, bool]]:
    """Splits the sample's tokens into segments without gaps. A segment is its first position, its
    end, and whether its tokens were sampled. Raises `NotTrainable` if the turns do not allow such
    segments."""
    segments: list[tuple[int, int, bool]] = []
    place = 0
    for start, end in _sampled_spans(sample):
        if start < place:
            raise _not_contiguous(sample, f"a turn begins at token {start}, inside of another")
        if start > place:
            segments.append((place, start, False))
        if len(set(sample.loss_mask[start:end])) > 1:
            raise _not_contiguous(sample, f"the turn at token {start} is trained in part")
        if end > start:
            segments.append((start, end, True))
        place = end
    if place < len(sample.token_ids):
        segments.append((place, len(sample.token_ids), False))
    covered = [
        trained for start, end, is_sampled in segments for trained in [is_sampled] * (end - start)
    ]
    if any(mask and not sampled for mask, sampled in zip(sample.loss_mask, covered, strict=True)):
        raise _not_contiguous(sample, "tokens outside of its turns are trained")
    return segments


def _sampled_spans(sample: Sample) -> list[tuple[int, int]]:
    if sample.turns:
        return [(turn.start, turn.end) for turn in sample.turns]
    response_start(sample)  # Raises if there is no prompt.
    spans: list[tuple[int, int]] = []
    for place, trained in enumerate(sample.loss_mask):
        if trained and spans and spans[-1][1] == place:
            spans[-1] = (spans[-1][0], place + 1)
        elif trained:
            spans.append((place, place + 1))
    return spans


def _not_contiguous(sample: Sample, why: str) -> NotTrainable:
    return NotTrainable(
        f"task {sample.task!r}, sample {sample.sample}: its turns do not make up its tokens "
        f"({why}), and NeMo-RL lays messages end to end"
    )


def _as_tensors(message: Fields) -> Fields:
    with needed_by("to_nemo with tensors", extra="local"):
        import torch

    tensors: dict[str, Any] = dict(message)
    tensors["token_ids"] = torch.tensor(tensors["token_ids"], dtype=torch.int64)
    if "generation_logprobs" in tensors:
        logprobs = torch.tensor(tensors["generation_logprobs"], dtype=torch.float32)
        tensors["generation_logprobs"] = logprobs
    return tensors


def from_nemo(rows: Iterable[Mapping[str, Any]]) -> list[Sample]:
    """Returns the samples that `to_nemo` converted. Tokens that are trained in another branch have
    logprobs of 0."""
    wants = "from_nemo wants the rows of to_nemo, as dicts (of an export, json.loads of each line)"
    samples = []
    for number, row in enumerate(listed(rows, wants, lambda item: isinstance(item, Mapping))):
        with read_back(wants, f"row {number}"):
            samples.append(_read(row))
    return samples


def _read(row: Mapping[str, Any]) -> Sample:
    ids: list[int] = []
    mask: list[int] = []
    logprobs: list[float] = []
    for message in row["message_log"]:
        tokens = _listed(message["token_ids"])
        sampled = _listed(message.get("generation_logprobs"))
        is_trained = message["role"] == "assistant" and sampled is not None
        ids += tokens or []
        mask += [int(is_trained)] * len(tokens or [])
        logprobs += sampled if is_trained and sampled is not None else [0.0] * len(tokens or [])
    provenance = row["extra_env_info"].get(KEY)
    reward = row["total_reward"]
    return restored(provenance, token_ids=ids, loss_mask=mask, logprobs=logprobs, reward=reward)


def _listed(values: Any) -> list[Any] | None:
    as_list: list[Any] | None = values.tolist() if hasattr(values, "tolist") else values
    return as_list
