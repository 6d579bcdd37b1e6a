"""Results of other tools, from files that those tools wrote."""

import json
import zipfile

import pytest

from holdfast.evaluation.importers.load import results_from
from holdfast.evaluation.rows.row import EvaluationRow
from holdfast.evaluation.rows.status import Status
from holdfast.evaluation.stats.comparison import compare
from holdfast.records.errors import UsageError
from support.paths import FIXTURES


def test_an_inspect_log_is_read_with_its_epochs_scores_and_errors():
    found = results_from(FIXTURES / "inspect.eval")
    assert (found.run, found.model, found.samples) == ("sums", "mockllm/model", 2)
    assert [row.name for row in found.rows] == [f"s{i}/{n}" for i in range(4) for n in range(2)]
    assert found.by_task() == {"s0": [1.0, 1.0], "s1": [0.0, 0.0], "s2": [1.0, 1.0]}
    assert found.metrics == ["match", "several/exact", "several/length"]
    assert found.rows[0].metrics["several/length"] == 33.0
    failed = [row for row in found.rows if row.task == "s3"]
    assert [(row.status, row.score) for row in failed] == [("FAILED", None)] * 2
    assert failed[0].root == "RuntimeError('a bug in the solver')"
    assert (found.rows[0].turns, found.rows[0].sampled_tokens) == (1, 33)


def test_an_inspect_log_in_json_says_the_same():
    found = results_from(FIXTURES / "inspect.json")
    assert found.by_task() == {"s0": [1.0], "s1": [0.0]}
    assert found.run == "sums"


def test_an_inspect_log_that_was_cut_short_is_read_from_its_journal(tmp_path):
    summary = {"id": 1, "epoch": 1, "scores": {"judge": {"value": 0.25}}, "limit": "token"}
    with zipfile.ZipFile(tmp_path / "cut.eval", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("_journal/start.json", json.dumps({"eval": {"task": "t", "model": "m"}}))
        for part in (10, 9):
            body = json.dumps([summary | {"id": part}])
            archive.writestr(f"_journal/summaries/{part}.json", body)
    found = results_from(tmp_path / "cut.eval")
    assert [(row.task, row.status, row.reason) for row in found.rows] == [
        ("9", "TRUNCATED", "token"),
        ("10", "TRUNCATED", "token"),
    ]
    assert found.by_task() == {"9": [0.25], "10": [0.25]}
    assert results_from(tmp_path) == found, "the one log of a folder"


def test_episodes_of_verifiers_are_read_with_their_weighted_rewards():
    found = results_from(FIXTURES / "verifiers_v1")
    assert (found.run, found.samples, len(found.rows)) == ("sums", 2, 4)
    assert list(found.by_task().values()) == [[0.25, 1.25], [0.25]]
    assert found.rows[3].root == "ProviderError: 503 from the engine"
    assert found.rows[0].metrics == {"length": 3.0}


def test_results_of_verifiers_are_read_with_what_lies_beside_them():
    found = results_from(FIXTURES / "verifiers_results")
    assert found.model == "fake-model"
    assert found.samples == 2
    assert found.by_task() == {"0": [0.0, 0.0], "1": [0.0, 0.0], "2": [1.0, 0.0]}
    assert found.metrics == ["exact", "length", "num_turns"]
    assert found.rows[0].turns == 1
    assert found.rows[0].sampled_tokens == 12
    assert 0.4 < found.rows[0].seconds < 0.5


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
    found = results_from(tmp_path / "rows.jsonl")
    assert found.by_task() == {"a": [1.0, 0.0], "b": [0.5]}
    assert found.model == "m"
    assert [row.root for row in found.failed] == ["gone"]
    assert found.rows[0].metrics == {"k": 2.0}


def test_what_comes_from_elsewhere_can_be_compared(tmp_path):
    ours = results_from(FIXTURES / "inspect.eval")
    theirs = results_from(FIXTURES / "inspect.json")
    found = compare(ours, theirs)
    assert found.a.run == found.b.run == "sums"


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.eval", b"no zip", "is no Inspect log"),
        ("a.jsonl", b"", "is empty"),
        ("a.jsonl", b'{"x": 1}', "has an unknown format"),
        ("a.jsonl", b"{", "not JSON"),
    ],
)
def test_what_cannot_be_read_is_told(tmp_path, name, content, said):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UsageError, match=said):
        results_from(tmp_path / name)


def test_a_file_that_is_not_there_and_a_folder_without_results_are_told(tmp_path):
    with pytest.raises(UsageError, match="does not exist"):
        results_from(tmp_path / "nowhere")
    with pytest.raises(UsageError, match="holds no results"):
        results_from(tmp_path)
