"""The way in: rows of both layouts, ours and eval-protocol's, become the samples that they were."""

import json
from collections.abc import Sequence

import pytest
from hypothesis import given
from msgspec import structs

from holdfast.convert import from_rows
from holdfast.engine.export.rows import evaluation_rows
from holdfast.records.errors import NotTrainable
from holdfast.records.group import GroupPolicy
from holdfast.records.history import History
from holdfast.records.samples.sample import Sample, samples_of
from holdfast.records.step import Finished, Record
from holdfast.records.trajectory import Status, TrajectoryKey
from holdfast.records.view import TrajectoryView
from holdfast.training.batch import group_samples, sequences_of
from holdfast.training.objective.objective import PRESETS
from support.convert.samples import trajectories
from support.records import generated, make_tasks, spec, started


def views(*logs: Sequence[Record]) -> list[TrajectoryView]:
    (task,) = make_tasks("a")
    return [
        TrajectoryView(
            TrajectoryKey("run", "a", number),
            task,
            History([started(), *log, Finished(Status.COMPLETED, "", (1.0, 0.0)[number], 2.0)]),
        )
        for number, log in enumerate(logs)
    ]


def rows_of(group: list[TrajectoryView], **options: bool) -> list[dict]:
    """As they are in a file."""
    settings = spec(samples=len(group), group=GroupPolicy())
    return json.loads(json.dumps(evaluation_rows(settings, group, **options)))


def expected(group: list[TrajectoryView]) -> list[Sample]:
    result = []
    for view in group:
        result += samples_of(view.history, task="a", group="a", sample=view.key.sample)
    return result


def as_eval_protocol(row: dict) -> dict:
    """With what eval-protocol's own rows have: no names of ours."""
    extra = row["execution_metadata"]["extra"]
    names = ("prompt_ids", "completion_ids", "inference_logprobs", "truncated", "finish_reasons")
    kept = {name: extra[name] for name in names if name in extra}
    if "token_turn_traces" in extra:
        kept = {"token_turn_traces": extra["token_turn_traces"]}
    return row | {"execution_metadata": {"extra": kept}}


def tokens(samples: list[Sample]) -> list[tuple]:
    return [(s.token_ids, s.loss_mask, s.logprobs, s.truncated) for s in samples]


def identity(sample: Sample) -> tuple:
    return (sample.token_ids, sample.loss_mask, sample.reward, sample.sample, sample.branch)


@given(trajectories(), trajectories())
def test_rows_of_ours_become_the_same_samples(first: list[Record], other: list[Record]) -> None:
    group = views(first, other)
    for options in ({}, {"turn_traces": True}, {"apart": True}):
        samples = from_rows(rows_of(group, **options))
        for ours, theirs in zip(samples, expected(group), strict=True):
            assert identity(ours) == identity(theirs)
            trained = [n for n, mask in enumerate(ours.loss_mask) if mask]
            assert [ours.logprobs[n] for n in trained] == [theirs.logprobs[n] for n in trained]


@given(trajectories(branches=False), trajectories(branches=False))
def test_versions_and_turns_come_with_them(first: list[Record], other: list[Record]) -> None:
    group = views(first, other)
    for ours, theirs in zip(from_rows(rows_of(group)), expected(group), strict=True):
        # Rows have neither rewards of steps nor what was sent to the engine.
        absent = ("step_rewards", "prompt_tokens", "completion_tokens")
        known = structs.replace(ours, **{name: getattr(theirs, name) for name in absent})
        assert known == theirs


def test_both_layouts_of_eval_protocol_are_the_same_samples() -> None:
    group = views([generated("0", ids=[3, 4])], [generated("0", ids=[5])])
    (side_by_side,) = rows_of(group)
    samples = from_rows([as_eval_protocol(side_by_side)])
    assert tokens(samples) == tokens(expected(group))
    traces = [as_eval_protocol(row) for row in rows_of(group, turn_traces=True)]
    assert tokens(from_rows(traces)) == tokens(expected(group))


def test_turns_of_eval_protocol_are_one_sample() -> None:
    log = [generated("0", ids=[3, 4]), generated("1", base="0", keep=4, delta=[9], ids=[5])]
    (row,) = rows_of(views(log), turn_traces=True)
    (result,) = from_rows([as_eval_protocol(row)])
    assert result.loss_mask == [0, 0, 1, 1, 0, 1]
    assert result.reward == 1.0, "the row's score"


@pytest.mark.parametrize("name", ["grpo", "cispo", "dapo", "gspo"])
def test_every_objective_trains_on_either(name: str) -> None:
    group = views([generated("0", ids=[3, 4])], [generated("0", ids=[5])])
    (row,) = rows_of(group)
    ours = sequences_of(group_samples(expected(group)), PRESETS[name])
    for rows in ([row], rows_of(group, turn_traces=True)):
        assert sequences_of(group_samples(from_rows(rows)), PRESETS[name]) == ours


def test_rows_that_cannot_be_trained_are_refused_by_their_id() -> None:
    group = views([generated("0")])
    (row,) = rows_of(group)
    extra = row["execution_metadata"]["extra"]
    bare = {**row, "execution_metadata": {"extra": {"completions_text": ["hi"]}}}
    with pytest.raises(NotTrainable, match="row 'a' has no token ids"):
        from_rows([bare])
    without = {name: value for name, value in extra.items() if name != "inference_logprobs"}
    with pytest.raises(NotTrainable, match="row 'a' has token ids without logprobs"):
        from_rows([{**row, "execution_metadata": {"extra": without}}])
    short = {**extra, "inference_logprobs": [[-1.0]]}
    with pytest.raises(NotTrainable, match="row 'a': its token fields do not fit"):
        from_rows([{**row, "execution_metadata": {"extra": short}}])
    positive = {**extra, "inference_logprobs": [[0.5 for _ in extra["completion_ids"][0]]]}
    with pytest.raises(NotTrainable, match=r"row 'a'.* a logprob is positive"):
        from_rows([{**row, "execution_metadata": {"extra": positive}}])
    flat = {"prompt_ids": [1], "completion_ids": [2, 3], "inference_logprobs": [-1.0, -1.0]}
    talk = [{"role": "assistant"}, {"role": "user"}, {"role": "assistant"}]
    with pytest.raises(NotTrainable, match="without a loss_mask"):
        from_rows([{**row, "messages": talk, "execution_metadata": {"extra": flat}}])


def test_a_row_that_failed_is_left_out_and_a_flat_one_is_one_turn() -> None:
    assert (
        from_rows([{"rollout_status": {"code": 13}, "execution_metadata": {"extra": None}}]) == []
    )
    flat = {"prompt_ids": [1], "completion_ids": [2, 3], "inference_logprobs": [-1.0, -2.0]}
    row = {"execution_metadata": {"extra": flat}, "evaluation_result": {"score": 0.5}}
    (result,) = from_rows([row])
    assert (result.loss_mask, result.reward, result.task) == ([0, 1, 1], 0.5, "row-0")
    invalid = {**row, "evaluation_result": {"score": 0.0, "is_score_valid": False}}
    assert from_rows([invalid])[0].reward is None
