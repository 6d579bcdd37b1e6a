"""What the journal says of each row, in numbers."""

import msgspec
import pytest

from holdfast.evaluation.stats.results import Results, results_of
from holdfast.journal.sqlite.journal import MemoryJournal
from holdfast.records.errors import JournalCorrupt
from holdfast.records.history import CAME_BACK_DIFFERENT
from holdfast.records.step import INTERRUPTED_CALL, Contract, Forked, ToolIntent, ToolResult
from holdfast.records.trajectory import Status
from support.evaluation.graded_runs import (
    BROKEN,
    BUG,
    RecordedTrajectory,
    failed,
    failed_to_score,
    journal_at,
    read,
    refilled,
    results,
    retried,
    running,
    scored,
    truncated,
    unscored,
    with_tools,
    write,
)
from support.records import generated, spec, sql, started


def rows_of(*message, **options):
    return results({"a": list(message)}, **options).rows


def test_rows_come_by_task_and_sample_with_their_scores():
    report = results({"b": [scored(1.0), scored(0.0)], "a": [scored(0.25), scored(0.5)]})
    assert [(row.task, row.sample, row.score) for row in report.rows] == [
        ("b", 0, 1.0), ("b", 1, 0.0), ("a", 0, 0.25), ("a", 1, 0.5),
    ]  # fmt: skip
    assert report.by_task() == {"b": [1.0, 0.0], "a": [0.25, 0.5]}
    assert (report.run, report.model, report.samples) == ("run", "model", 2)
    assert report.spec is not None


def test_a_row_counts_turns_tokens_seconds_and_metrics():
    (row,) = rows_of(with_tools())
    assert (row.turns, row.sampled_tokens) == (2, 3 + 19)
    assert row.seconds == pytest.approx(1.25)
    assert row.metrics == {"depth": 12.0, "style": 0.25}
    assert not row.disturbed


def test_failures_have_a_cause_and_no_score():
    lost, unscorable = rows_of(failed(), failed_to_score())
    assert (lost.status, lost.score, lost.cause) == ("FAILED", None, "infrastructure")
    assert lost.reason == "ConnectionError: port 8013 refused"
    assert lost.root == "ConnectionError: port # refused"
    assert (unscorable.cause, unscorable.reason) == ("code", "KeyError: 'answer'")


def test_a_truncation_is_an_outcome_with_its_reason():
    (row,) = rows_of(truncated(0.5, "max_tokens"))
    assert (row.status, row.reason, row.score, row.cause) == ("TRUNCATED", "max_tokens", 0.5, "")


def test_what_is_not_final_has_no_score():
    going, done = rows_of(running(), unscored())
    assert (going.settled, going.score, going.status) == (False, None, "RUNNING")
    assert (done.settled, done.score) == (True, None)


def test_a_finished_row_that_waits_for_its_scorer_has_no_score_yet():
    scored_row = scored(1.0, metrics={"m": 1.0})
    (row,) = rows_of(scored_row._replace(settled=False))
    assert (row.status, row.score, row.metrics, row.settled) == ("COMPLETED", None, {}, False)


def test_retried_refilled_and_interrupted_rows_are_disturbed_and_single_calls_disturb_nothing():
    interrupted = scored(
        1.0,
        generated("0", added=("task:0",)),
        ToolIntent("1", b"", "pay", "{}", "c", Contract.AT_MOST_ONCE, "k"),
        ToolResult("1", "unknown", error=INTERRUPTED_CALL),
    )
    changed = scored(1.0, before=[started(), Forked("0", CAME_BACK_DIFFERENT, "", 1.0)])
    forked = scored(1.0, before=[started(), Forked("0", "another prompt", "", 1.0)])
    patient = scored(1.0, msgspec.structs.replace(generated("0"), tries=4))
    messages = [retried(1.0), refilled(1.0), interrupted, changed, forked, patient, failed()]
    assert [row.disturbed for row in rows_of(*messages)] == [True] * 4 + [False] * 3


def test_like_failures_share_a_root_with_one_example_of_those_for_good():
    other = msgspec.structs.replace(BROKEN, message="port 9999 refused")
    report = results({"a": [retried(1.0), failed(), failed(other)], "b": [failed_to_score()] * 3})
    first, second = report.roots
    assert (first.root, first.failures, first.permanent) == ("KeyError: 'answer'", 3, 3)
    assert (second.root, second.failures, second.permanent, second.example) == (
        "ConnectionError: port # refused", 3, 2, "a/1",
    )  # fmt: skip
    assert (first.cause, first.phase) == ("code", "scoring")
    assert first.traceback == BUG.traceback


def test_samples_belong_to_runs():
    message = [scored(score) for score in (0.0, 0.1, 0.2, 0.3)] + [failed(), scored(0.5)]
    report = results({"a": message}, num_runs=3)
    assert report.by_run() == [{"a": [0.0, 0.1]}, {"a": [0.2, 0.3]}, {"a": [0.5]}]


def test_a_metric_is_counted_where_it_is():
    report = results(
        {
            "a": [scored(1.0, metrics={"m": 0.5}), scored(0.0)],
            "b": [scored(None, metrics={"m": 2.0}), failed()],
        }
    )
    assert report.by_task("m") == {"a": [0.5], "b": [2.0]}
    assert report.metrics == ["m"]


async def test_one_history_is_in_memory_at_a_time():
    class Watched(MemoryJournal):
        alive = most = 0

        async def history(self, trajectory):
            records = Watched.Records(await super().history(trajectory))
            Watched.alive += 1
            Watched.most = max(Watched.most, Watched.alive)
            return records

        class Records(list):
            def __del__(self):
                Watched.alive -= 1

    journal = Watched()
    run = await write(journal, spec(samples=4), {f"t{i}": [with_tools()] * 4 for i in range(25)})
    assert len((await results_of(journal, run)).rows) == 100
    assert Watched.most <= 2, "the next one is read before the last one is let go"


def test_tasks_that_rest_are_no_rows_of_the_run(tmp_path):
    path = journal_at(
        tmp_path / "j.db", (spec(samples=1), {"a": [scored(1.0)], "b": [scored(0.0)]})
    )
    sql(path, "UPDATE task_groups SET current = 0 WHERE task = 1")
    assert [row.task for row in read(path, "run", results_of).rows] == ["a"]


def test_a_bad_record_is_told_with_its_trajectory(tmp_path):
    path = journal_at(tmp_path / "j.db", (spec(samples=1), {"a": [scored(1.0)]}))
    sql(path, "UPDATE records SET body = x'00' WHERE seq = 1")
    with pytest.raises(JournalCorrupt, match=r"run/a/0 is corrupt"):
        read(path, "run", results_of)


def test_results_survive_json():
    report = results(
        {"ünï/<b>": [with_tools(), RecordedTrajectory([], Status.PENDING, settled=False)]}
    )
    assert msgspec.json.decode(msgspec.json.encode(report), type=Results) == report
