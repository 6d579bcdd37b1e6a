"""Results of other tools, from files that those tools wrote."""

import asyncio
import json
import zipfile
from pathlib import Path

import pytest

from holdfast.engine.export.export import What
from holdfast.engine.scoring.scorer import Score
from holdfast.evaluation.importers.load import results_from
from holdfast.evaluation.rows.row import EvaluationRow
from holdfast.evaluation.rows.status import Status
from holdfast.evaluation.stats.comparison import compare
from holdfast.evaluation.stats.results import Results, RowResult, results_of
from holdfast.records.errors import EngineUnavailable, UsageError
from holdfast.records.group import GroupPolicy
from holdfast.rollout.processors.training import TrainingRolloutProcessor
from support.engine.local_run import LocalRun
from support.paths import FIXTURES
from support.rollout.stage import Oracle


def test_an_inspect_log_is_read_with_its_epochs_scores_and_errors():
    results = results_from(FIXTURES / "inspect.eval")
    assert (results.run, results.model, results.samples) == ("sums", "mockllm/model", 2)
    assert [row.name for row in results.rows] == [f"s{i}/{n}" for i in range(4) for n in range(2)]
    assert results.by_task() == {"s0": [1.0, 1.0], "s1": [0.0, 0.0], "s2": [1.0, 1.0]}
    assert results.metrics == ["match", "several/exact", "several/length"]
    assert results.rows[0].metrics["several/length"] == 33.0
    failed = [row for row in results.rows if row.task == "s3"]
    assert [(row.status, row.score) for row in failed] == [("FAILED", None)] * 2
    assert failed[0].root == "RuntimeError('a bug in the solver')"
    assert (results.rows[0].turns, results.rows[0].sampled_tokens) == (1, 33)


def test_an_inspect_log_in_json_says_the_same():
    results = results_from(FIXTURES / "inspect.json")
    assert results.by_task() == {"s0": [1.0], "s1": [0.0]}
    assert results.run == "sums"


def test_the_folder_of_an_inspect_log_in_json_is_as_good_as_its_name(tmp_path):
    (tmp_path / "log.json").write_bytes((FIXTURES / "inspect.json").read_bytes())
    assert results_from(tmp_path).by_task() == {"s0": [1.0], "s1": [0.0]}
    (tmp_path / "log.eval").write_bytes((FIXTURES / "inspect.eval").read_bytes())
    (tmp_path / "eval-set.json").write_text("{}")
    assert len(results_from(tmp_path).rows) == 8, "the log, whatever else lies beside it"


def test_trajectories_are_no_rows_and_are_said_to_be_none(tmp_path):
    file = tmp_path / "t.jsonl"
    file.write_text(json.dumps({"trajectory": "r/a/0", "messages": [], "turns": [], "reward": 1}))
    with pytest.raises(UsageError, match=r"has trajectories: name their run, or export its rows"):
        results_from(file)


def test_an_inspect_log_that_was_cut_short_is_read_from_its_journal(tmp_path):
    summary = {"id": 1, "epoch": 1, "scores": {"judge": {"value": 0.25}}, "limit": "token"}
    with zipfile.ZipFile(tmp_path / "cut.eval", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("_journal/start.json", json.dumps({"eval": {"task": "t", "model": "m"}}))
        for part in (10, 9):
            body = json.dumps([summary | {"id": part}])
            archive.writestr(f"_journal/summaries/{part}.json", body)
    results = results_from(tmp_path / "cut.eval")
    assert [(row.task, row.status, row.reason) for row in results.rows] == [
        ("9", "TRUNCATED", "token"),
        ("10", "TRUNCATED", "token"),
    ]
    assert results.by_task() == {"9": [0.25], "10": [0.25]}
    assert results_from(tmp_path) == results, "the one log of a folder"


def test_episodes_of_verifiers_are_read_with_their_weighted_rewards():
    results = results_from(FIXTURES / "verifiers_v1")
    assert (results.run, results.samples, len(results.rows)) == ("sums", 2, 4)
    assert list(results.by_task().values()) == [[0.25, 1.25], [0.25]]
    assert results.rows[3].root == "ProviderError: 503 from the engine"
    assert results.rows[0].metrics == {"length": 3.0}


def test_results_of_verifiers_are_read_with_what_lies_beside_them():
    results = results_from(FIXTURES / "verifiers_results")
    assert results.model == "fake-model"
    assert results.samples == 2
    assert results.by_task() == {"0": [0.0, 0.0], "1": [0.0, 0.0], "2": [1.0, 0.0]}
    assert results.metrics == ["exact", "length", "num_turns"]
    assert results.rows[0].turns == 1
    assert results.rows[0].sampled_tokens == 12
    assert 0.4 < results.rows[0].seconds < 0.5


def test_evaluation_rows_are_results_too(tmp_path):
    def line(name: str, score: float, **more: object) -> str:
        row = EvaluationRow(
            input_metadata={"row_id": name, "completion_params": {"model": "m"}},
            evaluation_result={
                "score": score,
                "metrics": {"k": {"score": 2, "reason": ""}},
                "is_score_valid": name != "c",
            },
            **more,
        )
        return row.model_dump_json()

    lines = [
        line("a", 1.0),
        line("b", 0.5),
        line("a", 0.0),
        line("c", 1.0),
        line("d", 0.0, rollout_status=Status.rollout_unavailable_error("gone")),
    ]
    (tmp_path / "rows.jsonl").write_text("\n".join(lines))
    results = results_from(tmp_path / "rows.jsonl")
    assert results.by_task() == {"a": [1.0, 0.0], "b": [0.5]}
    assert results.model == "m"
    assert [row.root for row in results.failed] == ["gone"]
    assert results.rows[0].metrics == {"k": 2.0}


def exported(local: LocalRun, path: Path) -> Results:
    """What is read back from the run's own rows."""
    path.write_text("\n".join(json.dumps(row) for row in local.rows(What.ROWS)))
    return results_from(path)


def of_run(local: LocalRun) -> Results:
    async def read() -> Results:
        run = await local.journal.find_run(local.spec.name)
        return await results_of(local.journal, run)

    return asyncio.run(read())


def same(row: RowResult) -> tuple[object, ...]:
    return row.task, row.sample, row.status, row.score, row.root, row.turns, row.sampled_tokens


def test_a_runs_own_rows_have_every_sample_of_it_with_its_number_and_its_score(tmp_path):
    def answer(request):
        sample = int(request.id.split("/")[2])
        return EngineUnavailable("503 at port 4711") if sample == 1 else "x" * (sample + 1)

    local = LocalRun("a", "b", samples=4, policy=Oracle(answer), group=GroupPolicy(refill=0))
    local.run(
        TrainingRolloutProcessor(),
        lambda view: None if view.key.sample == 3 else view.key.sample / 3,
        max_retry=0,
    )
    results, recorded = exported(local, tmp_path / "rows.jsonl"), of_run(local)
    assert len(local.rows(What.ROWS)) == 2, "the samples of a task are one row"
    assert results.samples == 4
    assert [same(row) for row in results.rows if row.status != "FAILED"] == [
        same(row) for row in recorded.rows if row.status != "FAILED"
    ]
    assert [(row.name, row.cause, row.root) for row in results.failed] == [
        (row.name, row.cause, row.root) for row in recorded.failed
    ]
    assert compare(recorded, results).paired.ties == 2
    assert results.by_task() == {"a": [0.0, 2 / 3], "b": [0.0, 2 / 3]}


def test_a_group_of_failures_has_a_failure_for_each_sample(tmp_path):
    down = Oracle(lambda request: EngineUnavailable("503"))
    local = LocalRun(samples=3, policy=down, group=GroupPolicy(refill=0))
    local.run(TrainingRolloutProcessor(), max_retry=0)
    results = exported(local, tmp_path / "rows.jsonl")
    assert [row.name for row in results.failed] == ["a/0", "a/1", "a/2"]


def test_branches_of_a_trajectory_are_one_result(tmp_path):
    async def branches(t):
        async def go(side):
            side.add("on")
            await side.generate()

        t.add("question")
        await t.generate()
        await t.branch(go, go)

    local = LocalRun(samples=2)
    local.run(branches, lambda view: float(view.key.sample))
    assert len(local.rows(What.ROWS)) > 2
    results = exported(local, tmp_path / "rows.jsonl")
    assert [(row.name, row.score) for row in results.rows] == [("a/0", 0.0), ("a/1", 1.0)]


def test_metrics_of_a_row_that_holds_several_samples_are_not_taken_for_all_of_them(tmp_path):
    local = LocalRun(samples=2)
    local.run(TrainingRolloutProcessor(), lambda view: Score(1.0, {"length": view.key.sample}))
    assert exported(local, tmp_path / "rows.jsonl").metrics == []


def test_what_comes_from_elsewhere_can_be_compared(tmp_path):
    ours = results_from(FIXTURES / "inspect.eval")
    theirs = results_from(FIXTURES / "inspect.json")
    comparison = compare(ours, theirs)
    assert comparison.a.run == comparison.b.run == "sums"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.eval", b"no zip", "is not an Inspect log"),
        ("a.jsonl", b"", "is empty"),
        ("a.jsonl", b'{"x": 1}', "has an unknown format"),
        ("a.jsonl", b"{", "not JSON"),
    ],
)
def test_what_cannot_be_read_is_told(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UsageError, match=message):
        results_from(tmp_path / name)


def test_a_file_that_is_not_there_and_a_folder_without_results_are_told(tmp_path):
    with pytest.raises(UsageError, match="does not exist"):
        results_from(tmp_path / "nowhere")
    with pytest.raises(UsageError, match="holds no results"):
        results_from(tmp_path)
