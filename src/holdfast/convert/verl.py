"""Converts samples to verl's `DataProto` and to its agent loop outputs. Written for verl 0.9.

There is one row per branch, not per turn: `prompts` are padded on the left, `responses` on the
right. The rows of a group have the same `uid`, and a group may have any size. No placeholders are
written, because verl would count them in its baseline. Every row counts in that baseline, so a
trajectory with two branches counts twice, unless `branches="longest"` keeps one row per trajectory.
"""

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from holdfast.convert.checks import (
    check_divisible,
    check_sample,
    describe,
    narrowed,
    read_back,
    samples_for,
)
from holdfast.convert.experts import check_experts, rows_of
from holdfast.convert.provenance import KEY, provenance_of, restored
from holdfast.convert.selection import (
    Branches,
    MissingReward,
    chosen,
    groups_of,
    placed_rewards,
    response_start,
    rewarded_members,
    single_branch,
)
from holdfast.convert.versions import global_steps, steps_of
from holdfast.extras import needed_by
from holdfast.records.encoding.bounds import check_whole
from holdfast.records.errors import NotTrainable, UsageError
from holdfast.records.samples.sample import Sample
from holdfast.records.samples.version import WeightVersion

if TYPE_CHECKING:
    import numpy as np

    from holdfast.convert.experts import Experts, Rows

    Arrays = dict[str, np.ndarray[Any, Any]]
_TRAINER = "verl"


class VerlBatch(Struct, frozen=True):
    """Rows as arrays, under verl's names. `data_proto` makes a `DataProto` of them."""

    tensors: "Arrays"
    """`prompts`, `responses`, `input_ids`, `attention_mask`, `position_ids`, `response_mask`,
    `rollout_log_probs`, `rm_scores`, and `routed_experts` if they were given."""
    non_tensors: "Arrays"
    """`uid`, `__num_turns__`, `min_global_steps`, `max_global_steps`, and the provenance."""
    left_out: int = 0
    """The number of branches that `branches="longest"` left out."""

    def data_proto(self) -> Any:
        """Returns a `verl.DataProto` that shares the memory of the arrays."""
        with needed_by("data_proto"):
            import torch
            from verl import DataProto

        return DataProto.from_dict(
            tensors={name: torch.from_numpy(value) for name, value in self.tensors.items()},
            non_tensors=dict(self.non_tensors),
        )


def to_verl(
    samples: Iterable[Sample],
    *,
    prompt_length: int | None = None,
    response_length: int | None = None,
    pad_token_id: int = 0,
    versions: Sequence[WeightVersion] = (),
    missing_reward: str = MissingReward.REFUSE,
    branches: str | None = None,
    divisible_by: int = 1,
    experts: "Experts | None" = None,
    layers: int | None = None,
) -> VerlBatch:
    """Returns the samples as arrays, one row per branch.

    `prompt_length` and `response_length` are the lengths to which verl pads; None means the length
    of the longest sample. A longer sample is refused, not cut. `versions` are the run's
    (`load_versions`); they give the steps of `min_global_steps` and `max_global_steps`. `experts`
    (`load_experts`) are written as `routed_experts`. `layers` is the model's number of layers,
    needed if its engine did not report it.
    """
    missing = chosen(MissingReward, "missing_reward", missing_reward)
    kept = None if branches is None else chosen(Branches, "branches", branches)
    for name, length in (("prompt_length", prompt_length), ("response_length", response_length)):
        if length is not None:
            check_whole(name, length, least=1)
    check_whole("pad_token_id", pad_token_id, least=0)
    check_whole("divisible_by", divisible_by, least=1)
    check_experts(experts)
    known = steps_of("to_verl", versions)
    rows, left_out = _rows(samples, missing, kept)
    check_divisible(rows, divisible_by, trainer=_TRAINER, of="its batch size")
    starts = [response_start(sample) for sample in rows]
    wide = _length("prompt", rows, starts, prompt_length)
    long = _length(
        "response",
        rows,
        [len(s.token_ids) - n for s, n in zip(rows, starts, strict=True)],
        response_length,
    )
    tensors = _tensors(rows, starts, wide=wide, long=long, pad=pad_token_id)
    if experts is not None:
        routes = [rows_of(experts, sample, layers=layers) for sample in rows]
        tensors["routed_experts"] = _placed(routes, starts, wide=wide, long=long)
    return VerlBatch(tensors, _non_tensors(rows, known), left_out)


def _rows(
    samples: Iterable[Sample], missing: MissingReward, branches: Branches | None
) -> tuple[list[Sample], int]:
    rows: list[Sample] = []
    left_out = 0
    for group in groups_of(samples_for("to_verl", samples)):
        for member in rewarded_members(group, missing, trainer=_TRAINER):
            if branches is None:
                rows += member.samples
                continue
            sample, more = single_branch(member, branches, trainer=_TRAINER)
            rows.append(sample)
            left_out += more
    if not rows:
        raise UsageError("there is no sample to convert: no group has a valid member with a reward")
    return rows, left_out


def _length(what: str, rows: Sequence[Sample], lengths: Sequence[int], limit: int | None) -> int:
    longest = max(range(len(rows)), key=lengths.__getitem__)
    if limit is not None and lengths[longest] > limit:
        sample = rows[longest]
        raise UsageError(
            f"task {sample.task!r}, sample {sample.sample}: its {what} has {lengths[longest]} "
            f"tokens, and verl's {what}_length is {limit}: raise it, or limit the rollout"
        )
    return lengths[longest] if limit is None else limit


def _tensors(
    rows: Sequence[Sample], starts: Sequence[int], *, wide: int, long: int, pad: int
) -> "Arrays":
    with needed_by("to_verl"):
        import numpy as np

    shape = (len(rows), wide + long)
    ids = np.full(shape, pad, dtype=np.int64)
    attention = np.zeros(shape, dtype=np.int64)
    positions = np.zeros(shape, dtype=np.int64)
    mask = np.zeros((len(rows), long), dtype=np.int64)
    logprobs = np.zeros((len(rows), long), dtype=np.float32)
    scores = np.zeros((len(rows), long), dtype=np.float32)
    for row, (sample, start) in enumerate(zip(rows, starts, strict=True)):
        length = len(sample.token_ids)
        first, last = wide - start, wide - start + length
        ids[row, first:last] = array("q", sample.token_ids)
        attention[row, first:last] = 1
        positions[row, first:last] = np.arange(length)
        # As in verl, positions continue in the padding on the right.
        positions[row, last:] = length - 1
        mask[row, : length - start] = np.frombuffer(bytes(sample.loss_mask[start:]), np.uint8)
        logprobs[row, : length - start] = array("d", sample.logprobs[start:])
        for place, reward in placed_rewards(sample, start):
            scores[row, place] = narrowed(reward, sample, trainer=_TRAINER)
    return {
        "prompts": ids[:, :wide],
        "responses": ids[:, wide:],
        "input_ids": ids,
        "attention_mask": attention,
        "position_ids": positions,
        "response_mask": mask,
        "rollout_log_probs": logprobs,
        "rm_scores": scores,
    }


def _placed(experts: "Sequence[Rows]", starts: Sequence[int], *, wide: int, long: int) -> "Rows":
    """Places routed experts at their tokens. Padding and the last token have zeros, as in verl."""
    import numpy as np

    placed = np.zeros((len(experts), wide + long, *experts[0].shape[1:]), dtype=np.int16)
    for row, (rows, start) in enumerate(zip(experts, starts, strict=True)):
        placed[row, wide - start : wide - start + len(rows)] = rows
    return placed


def _non_tensors(rows: Sequence[Sample], known: Mapping[str, int]) -> "Arrays":
    import numpy as np

    def column(values: Iterable[object]) -> "np.ndarray[Any, Any]":
        column = np.empty(len(rows), dtype=object)
        column[:] = list(values)
        return column

    steps = [global_steps(sample, known) for sample in rows]
    return {
        "uid": column(sample.group for sample in rows),
        "__num_turns__": np.array([len(sample.turns) for sample in rows], dtype=np.int32),
        "min_global_steps": column(least for least, _ in steps),
        "max_global_steps": column(most for _, most in steps),
        KEY: column(provenance_of(sample) for sample in rows),
    }


def from_verl(batch: Any) -> list[Sample]:
    """Returns the samples that `to_verl` converted. `batch` is its result, or a `DataProto` of it.

    Rewards come back in the precision of float32.
    """
    wants = "from_verl wants what to_verl gives, or a DataProto of it"
    if isinstance(batch, VerlBatch):
        with read_back(wants, "this one"):
            return list(_read(batch.tensors, batch.non_tensors))
    if not hasattr(batch, "batch") or not hasattr(batch, "non_tensor_batch"):
        raise UsageError(f"{wants}, not {describe(batch)}")
    with read_back(wants, "this one"):
        tensors = {name: value.numpy() for name, value in batch.batch.items()}
        return list(_read(tensors, batch.non_tensor_batch))


def _read(tensors: "Mapping[str, Any]", others: Mapping[str, Any]) -> Iterator[Sample]:
    wide = tensors["prompts"].shape[1]
    for row, provenance in enumerate(others[KEY]):
        there = tensors["attention_mask"][row].astype(bool)
        prompt = int(there[:wide].sum())
        response = int(there[wide:].sum())
        yield restored(
            provenance,
            token_ids=tensors["input_ids"][row][there].tolist(),
            loss_mask=[0] * prompt + tensors["response_mask"][row][:response].tolist(),
            logprobs=[0.0] * prompt + tensors["rollout_log_probs"][row][:response].tolist(),
            reward=float(tensors["rm_scores"][row].sum(dtype="float64")),
        )


def to_agent_loop_output(
    sample: Sample, *, versions: Sequence[WeightVersion] = ()
) -> dict[str, object]:
    """Returns the fields of verl's `AgentLoopOutput`, except `metrics`, which verl fills in itself.
    A reward of None raises `NotTrainable`, because verl would ignore the rewards of the whole
    batch."""
    check_sample("to_agent_loop_output", sample)
    if sample.reward is None:
        raise NotTrainable(
            f"task {sample.task!r}, sample {sample.sample}: its reward is None, and verl takes the "
            "rewards of a whole batch away where one is; score it, or leave it out"
        )
    return agent_loop_fields(sample, versions)


def agent_loop_fields(sample: Sample, versions: Sequence[WeightVersion] = ()) -> dict[str, object]:
    """Returns the same fields as `to_agent_loop_output`, but accepts a sample without a reward,
    which verl then scores."""
    start = response_start(sample)
    if sample.reward is not None:
        narrowed(sample.reward, sample, trainer=_TRAINER)
    least, most = global_steps(sample, steps_of("to_agent_loop_output", versions))
    return {
        "prompt_ids": sample.token_ids[:start],
        "response_ids": sample.token_ids[start:],
        "response_mask": sample.loss_mask[start:],
        "response_logprobs": sample.logprobs[start:],
        "reward_score": sample.reward,
        "num_turns": len(sample.turns),
        "extra_fields": {
            "min_global_steps": least,
            "max_global_steps": most,
            "turn_scores": [step.reward for step in sample.step_rewards],
            "tool_rewards": [],
            KEY: provenance_of(sample),
        },
    }
