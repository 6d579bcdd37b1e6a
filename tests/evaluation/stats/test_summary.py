"""What is told at the end: a few lines for people, JSON for scripts."""

import json

import msgspec

from holdfast.evaluation.stats.results import Results, RowResult
from holdfast.evaluation.stats.summary import summary_json, summary_text
from holdfast.evaluation.stats.verdict import Threshold, verdict_of
from support.evaluation.graded_runs import (
    BROKEN,
    BUG,
    failed,
    failed_to_score,
    results,
    retried,
    running,
    scored,
    truncated,
    with_tools,
)

EVENTFUL = {
    "a": [scored(1.0), scored(0.0)],
    "b": [with_tools(1.0), truncated(1.0)],
    "c": [retried(0.0), failed()],
    "d": [failed_to_score(), running()],
}


def text_of(result: Results, **options) -> str:
    return summary_text(result, verdict_of(result, **options))


def json_of(result: Results, **options) -> dict:
    report = summary_json(result, verdict_of(result, **options), timestamp=7)
    return json.loads(msgspec.json.encode(report))


def test_the_first_line_has_the_score_its_error_and_the_verdict():
    report = results({"a": [scored(1.0)], "b": [scored(0.0)], "c": [scored(1.0)]}, name="r")
    head = text_of(report, threshold=Threshold(0.5)).splitlines()[0]
    assert head.startswith("r: 0.6667 ± 0.3333 (SE), 95% [")
    assert head.endswith("PASSED: score 0.666667 reaches the threshold of 0.5")
    assert "FAILED: score" in text_of(report, threshold=Threshold(0.7))


def test_every_kind_of_end_is_counted():
    lines = text_of(results(EVENTFUL)).splitlines()
    assert lines[1] == (
        "  5 of 8 rows scored (4 tasks × 2 samples); 1 truncated (1 max_turns); "
        "2 failed for good (1 code, 1 infrastructure); 1 not settled yet"
    )


def test_rates_disturbances_metrics_work_and_failures_follow():
    text = text_of(results(EVENTFUL))
    assert "  pass@1 0.500  pass@2 1.000  pass^2 0.500" in text
    assert "  clean 0.7500 ± 0.2500 (n=4) · retried or interrupted 0.0000 (n=1)" in text
    assert "  metrics: depth 12.0000 (n=1), style 0.2500 (n=1)" in text
    assert "  8 turns, 40 sampled tokens; slowest: b/0 1.2 s" in text
    why = "1 row failed for good; for instance"
    assert f"  [code, scoring] 1 × KeyError: 'answer' ({why} d/0)" in text
    assert "      KeyError: 'answer'" in text
    assert f"2 × ConnectionError: port 8013 refused ({why} c/1)" in text


def test_failures_that_cost_no_row_are_only_counted():
    text = text_of(results({"a": [retried(1.0)], "b": [scored(1.0)]}))
    assert "1 failure overcome, with no effect on the score" in text
    assert "Connection" not in text
    assert "Traceback" not in text


def test_many_roots_and_long_tracebacks_are_bounded():
    long = "".join(f"line {number}\n" for number in range(100))
    message = [
        failed(msgspec.structs.replace(BUG, type=f"Bug{letter}", traceback=long, phase="rollout"))
        for letter in "ABCDEFG"
    ]
    text = text_of(results({"a": message}))
    assert "  … and 2 other kinds of failure" in text
    assert text.count("line 99") == 5
    assert "line 87" not in text


def test_the_commands_to_look_further_are_quoted():
    changed = msgspec.structs.replace(
        results({"a": [scored(1.0)]}, name="t[x y]"), source="my runs.db"
    )
    assert "  holdfast show 't[x y]' --journal 'my runs.db'\n" in text_of(changed) + "\n"
    foreign = Results("theirs", (RowResult("a", score=1.0),), source="log.json")
    assert "holdfast" not in text_of(foreign)
    assert "  from log.json" in text_of(foreign)


def test_control_characters_are_shown_and_not_obeyed():
    evil = "\x1b[31mred\nnext\r\u202e"
    broken = msgspec.structs.replace(BROKEN, message=evil, traceback=f"{evil}\n{evil}")
    text = text_of(results({evil: [failed(broken), with_tools(1.0)]}, name="r\x1b]0;x\x07"))
    assert not set("\x1b\r\x07\u202e") & set(text)
    assert "\\x1b[31mred" in text


def test_where_all_are_alike_the_bound_is_told_instead_of_an_error_of_zero():
    solved = results({f"t{number}": [scored(1.0)] for number in range(20)})
    assert "95% sure: above 0.861" in text_of(solved)
    lost = results({f"t{number}": [scored(0.0)] for number in range(20)})
    assert "95% sure: below 0.139" in text_of(lost)


def test_tasks_that_nobody_scored_make_nobody_more_sure():
    alone = {"a": [scored(1.0)], "b": [scored(1.0)]}
    more = {name: [failed()] for name in "cdefgh"} | {"i": [failed_to_score()], "j": [running()]}
    (bound,) = [line for line in text_of(results(alone)).splitlines() if "95% sure" in line]
    assert bound in text_of(results(alone | more)).splitlines()


def test_a_run_without_a_score_says_so():
    assert text_of(results({"a": [failed()]})).startswith("run: no score\n")
    assert text_of(Results("empty", ())).startswith("empty: no score\n  0 of 0 rows scored")


def test_several_runs_are_told_one_by_one():
    report = results({"a": [scored(1.0), scored(0.0)], "b": [scored(1.0), scored(1.0)]}, num_runs=2)
    text = text_of(report, aggregation="max")
    assert "max of 2 runs" in text
    assert "  by run: 1.0000, 0.5000" in text
    assert "(2 tasks × 2 samples (2 runs))" in text


# --- JSON


def test_the_json_has_the_keys_of_eval_protocol():
    totals = results(EVENTFUL, name="r")
    data = summary_json(totals, verdict_of(totals), suite="test_math", timestamp=7)
    assert {name: data[name] for name in ("suite", "model", "num_runs", "rows", "timestamp")} == {
        "suite": "test_math", "model": "model", "num_runs": 1, "rows": 8, "timestamp": 7,
    }  # fmt: skip
    assert data["agg_score"] == 0.6
    assert data["agg_ci_low"] <= 0.6 <= data["agg_ci_high"]
    assert data["standard_error"] > 0
    assert data["metrics_agg"]["depth"] == {"mean": 12.0}


def test_a_metric_has_an_interval_of_its_clustered_error():
    body = json_of(
        results({"a": [scored(1.0, metrics={"m": 2.0})], "b": [scored(0.0, metrics={"m": 4.0})]})
    )
    metric = body["metrics_agg"]["m"]
    assert metric["mean"] == 3.0
    assert metric["standard_error"] == 1.0
    assert (round(metric["ci_low"], 3), round(metric["ci_high"], 3)) == (1.04, 4.96)


def test_the_json_tells_what_the_text_tells():
    body = json_of(results(EVENTFUL), threshold=Threshold(0.9, 0.1))
    assert body["passed"] is False
    assert body["threshold"] == {
        "success": 0.9,
        "standard_error": 0.1,
        "clustered_standard_error": None,
    }
    assert body["failed_by_cause"] == {"code": 1, "infrastructure": 1}
    assert body["truncated_by_reason"] == {"max_turns": 1}
    assert body["pass_at"] == {"1": 0.5, "2": 1.0}
    assert body["pass_all"] == {"1": 0.5, "2": 0.5}
    assert (body["clean"]["rows"], body["disturbed"]["rows"]) == (4, 1)
    assert [failure["traceback"] for failure in body["failures"]] == [
        BROKEN.traceback,
        BUG.traceback,
    ]
    assert body["slowest"] == [{"row": "b/0", "seconds": 1.25}]
    assert (body["scored"], body["unsettled"], body["turns"]) == (5, 1, 8)


def test_what_is_not_known_is_left_out():
    data = json_of(results({"a": [scored(1.0)]}))
    assert data["agg_score"] == 1.0
    assert not {"agg_ci_low", "agg_ci_high", "standard_error", "metrics_agg"} & set(data)
    assert json_of(results({"a": [failed()]}))["agg_score"] is None
