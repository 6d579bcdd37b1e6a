"""What fails, fails alone, is counted apart from what the policy did, and is told."""

import re

from holdfast.records.trajectory import Status
from holdfast.testing import Fault, FaultKind
from support.evaluation.evaluation_project import EvaluationProject

TWENTY = """
TWENTY = [{"id": f"r{n}", "prompt": f"What is {n}?", "ground_truth": n} for n in range(20)]
"""


def test_one_scorer_of_twenty_that_raises_costs_its_own_row(project: EvaluationProject) -> None:
    project.write(
        TWENTY
        + """
@evaluation_test(dataset=TWENTY)
def test_it(row):
    if row.ground_truth == 7:
        raise ZeroDivisionError("seven is too much")
    return 1.0
"""
    )
    result = project.run()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "*1 of 20 rows failed for good (1 code)*--holdfast-retry-failed*",
            "*19 of 20 rows scored*",
            "*test_it.py*in test_it*",
            "*ZeroDivisionError: seven is too much*",
        ]
    )
    row = project.only()
    assert (row["agg_score"], row["scored"], row["failed"]) == (1.0, 19, 1)
    assert row["failed_by_cause"] == {"code": 1}
    statuses = {name: item.status for name, item in project.histories("test_it.test_it").items()}
    assert [name for name, status in statuses.items() if status is Status.FAILED] == ["r7/0"]
    project.run("--holdfast-no-fail-on-permanent-failure").assert_outcomes(passed=1)


HOSTILE = """
class Hostile(Exception):
    def __getattr__(self, name):
        raise RuntimeError(f"no {name}")
"""


def test_a_judge_whose_error_cannot_be_looked_at_costs_its_own_row(
    project: EvaluationProject,
) -> None:
    project.write(
        TWENTY
        + HOSTILE
        + """
@evaluation_test(dataset=TWENTY)
def test_it(row):
    if row.ground_truth == 7:
        raise Hostile("seven")
    return 1.0
"""
    )
    result = project.run()
    result.assert_outcomes(failed=1)
    result.stdout.no_fnmatch_line("*INTERNALERROR*")
    result.stdout.fnmatch_lines(["*19 of 20 rows scored*", "*Hostile, which cannot be looked at*"])


def test_a_data_set_whose_error_cannot_be_looked_at_fails_its_own_test(
    project: EvaluationProject,
) -> None:
    project.write(
        HOSTILE
        + """
def rows():
    raise Hostile("no rows")

@evaluation_test(dataset=rows)
def test_it(row):
    return 1.0
"""
    )
    result = project.run()
    result.assert_outcomes(failed=1)
    result.stdout.no_fnmatch_line("*INTERNALERROR*")


def test_what_the_engine_breaks_is_no_score_and_is_not_judged(project: EvaluationProject) -> None:
    project.engine.set_faults(Fault(FaultKind.MISSING_IDS, matching="/r1/", times=0))
    project.write(
        """
        @evaluation_test(dataset=ROWS, passed_threshold=1.0)
        def test_it(row):
            assert row.ground_truth != 1, "a row that failed is not an outcome"
            return 1.0
        """
    )
    result = project.run("--holdfast-max-retry", 0, "--holdfast-report", "pages")
    result.assert_outcomes(failed=1)
    row = project.only()
    assert (row["agg_score"], row["passed"], row["failed"]) == (1.0, False, 1)
    page = (project.folder / "pages" / "test_it.test_it.html").read_text()
    assert '"passed":false' in page
    result.stdout.fnmatch_lines(["*FAILED: score 1 reaches*but 1 of 4 rows failed for good"])
    assert row["reason"].endswith("but 1 of 4 rows failed for good")
    assert row["failed_by_cause"] == {"infrastructure": 1}
    result.stdout.fnmatch_lines(["*1 of 4 rows failed for good (1 infrastructure)*"])
    failures = project.histories("test_it.test_it")["r1/0"].failures
    assert len(failures) == 1, "0 retries are no retry"


def test_a_retried_row_goes_on_from_its_journal_and_is_told_apart(
    project: EvaluationProject,
) -> None:
    project.write(
        """
        seen = set()

        async def two_turns(t: Rollout):
            t.add(*t.task.messages)
            await t.generate()
            if t.task.id == "r1" and t.task.id not in seen:
                seen.add(t.task.id)
                raise ConnectionError("a tool lost its connection")
            await t.generate()

        @evaluation_test(dataset=ROWS, rollout_processor=two_turns)
        def test_it(row):
            assert [one.role for one in row.messages] == ["user", "assistant", "assistant"]
            return 1.0
        """
    )
    project.run().assert_outcomes(passed=1)
    row = project.only()
    assert row["disturbed"]["rows"] == 1
    assert row["clean"]["rows"] == 3
    assert project.engine.stats().requests == 8, "no turn is sampled twice"


def test_retries_may_be_asked_for_as_eval_protocol_does(project: EvaluationProject) -> None:
    project.write(
        """
        from holdfast.evaluation import BackoffConfig, ExceptionHandlerConfig
        from holdfast import EnvironmentBroken

        async def broken(t: Rollout):
            raise EnvironmentBroken("for ever")

        @evaluation_test(
            dataset=ROWS[:1],
            rollout_processor=broken,
            exception_handler_config=ExceptionHandlerConfig(
                backoff_config=BackoffConfig(max_tries=2, base_delay=0.0, raise_on_giveup=False)
            ),
        )
        def test_it(row):
            return 1.0
        """
    )
    result = project.run()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*no row was scored*"])
    assert "--holdfast-no-fail-on-permanent-failure" not in result.stdout.str()
    assert len(project.histories("test_it.test_it")["r0/0"].failures) == 3
    project.run("--holdfast-new", "--ep-max-retry", 0).assert_outcomes(failed=1)
    assert len(project.histories("test_it.test_it-2")["r0/0"].failures) == 1


def test_what_the_policy_ran_into_is_an_outcome_and_is_judged(project: EvaluationProject) -> None:
    project.write(
        """
        # With another seed, a reply may be one token long of its own accord.
        @evaluation_test(
            dataset=ROWS, completion_params={"max_tokens": 1}, passed_threshold=0.0, seed=2
        )
        def test_it(row):
            assert row.rollout_status.code == 100
            return 0.0
        """
    )
    project.run().assert_outcomes(passed=1)
    row = project.only()
    assert (row["scored"], row["failed"], row["truncated"]) == (4, 0, 4)
    assert row["truncated_by_reason"] == {"max_tokens": 4}


def test_a_scorer_that_hangs_is_given_up(project: EvaluationProject) -> None:
    project.write(
        """
        import asyncio

        @evaluation_test(dataset=ROWS, scorer_timeout=1.5, scorer_tries=1)
        async def test_it(row):
            if row.ground_truth == 2:
                await asyncio.sleep(3600)
            return 1.0
        """
    )
    result = project.run()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*ScorerTimeout: *test_it did not answer within**"])
    assert project.only()["scored"] == 3


def test_equal_rows_stay_distinct(project: EvaluationProject) -> None:
    project.write(
        """
        SAME = [{"prompt": "again"}] * 3 + [
            EvaluationRow(
                messages=[Message(role="user", content="again")],
                input_metadata=InputMetadata(row_id="twin"),
            )
        ] * 2

        @evaluation_test(dataset=SAME)
        def test_it(row):
            return 1.0
        """
    )
    project.run().assert_outcomes(passed=1)
    assert project.only()["tasks"] == 5
    names = list(project.histories("test_it.test_it"))
    assert names[3:] == ["twin/0", "twin-2/0"]
    assert project.engine.stats().requests == 5


def test_any_language_and_any_id(project: EvaluationProject) -> None:
    project.write(
        """
        TEXTS = ["Größe? 尺寸 🌊", "\\u202eשלום\\u202c", "a\\u0301\\u0000b", "x" * 200]

        @evaluation_test(
            dataset=[{"id": f"zeile/{text[:100]}", "prompt": text} for text in TEXTS]
        )
        def test_übung(row):
            assert row.messages[0].content in TEXTS
            return Score(1.0, reasons={"warum": row.messages[0].content})
        """
    )
    result = project.run("--holdfast-output-dir", "out")
    result.assert_outcomes(passed=1)
    assert project.only()["scored"] == 4
    (run,) = project.runs()
    assert run == "test_it.test_übung"
    assert len((project.folder / "out" / f"{run}.jsonl").read_text().splitlines()) == 4
    assert re.search("zeile/Größe", "".join(project.histories(run)))


def test_no_rows_is_a_mistake_that_is_told(project: EvaluationProject) -> None:
    project.write(
        """
        @evaluation_test(dataset="nowhere.jsonl")
        def test_missing(row):
            return 1.0

        @evaluation_test(dataset=[])
        def test_none(row):
            return 1.0
        """
    )
    result = project.run()
    assert result.ret != 0
    assert "nowhere.jsonl" in result.stdout.str() or "empty" in result.stdout.str()
    assert project.engine.stats().requests == 0


def test_a_limit_on_what_is_spent_fails_the_test_and_a_higher_one_goes_on(
    project: EvaluationProject,
) -> None:
    project.write(
        TWENTY
        + """
@evaluation_test(dataset=TWENTY, max_concurrent_rollouts=1)
def test_it(row):
    return 1.0
"""
    )
    result = project.run("--holdfast-max-tokens-total", 100)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*tokens are used: max-tokens-total (100) is reached;*"])
    requests = project.engine.stats().requests
    assert 0 < requests < 20
    project.run("--holdfast-max-tokens-total", 100_000).assert_outcomes(passed=1)
    assert project.engine.stats().requests == 20, "nothing is sampled twice"


def test_a_limit_that_the_last_replies_cross_stops_nothing(project: EvaluationProject) -> None:
    project.write(
        """
        @evaluation_test(dataset=ROWS, completion_params=[{"temperature": 0.1}, {"temperature": 1}])
        def test_it(row):
            return 1.0
        """
    )
    for times in ("rolled out", "read from the journal"):
        project.run("--holdfast-max-tokens-total", 10).assert_outcomes(passed=2)
        assert project.engine.stats().requests == 8, f"both settings, once, {times}"


def test_a_summary_says_what_was_used_and_what_it_costs(project: EvaluationProject) -> None:
    project.write("@evaluation_test(dataset=ROWS)\ndef test_it(row):\n    return 1.0\n")
    table = project.folder / "prices.toml"
    table.write_text("[models.'*']\nprompt = 1000\ncompletion = 1000\n")
    result = project.run("--holdfast-price", table, "--holdfast-report", "pages")
    result.assert_outcomes(passed=1)
    row = project.only()
    (used,) = row["usage"].values()
    assert used["completion_tokens"] == row["sampled_tokens"] > 0
    total = used["prompt_tokens"] + used["completion_tokens"]
    assert abs(row["cost"]["amount"] - total / 1000) < 1e-9
    result.stdout.fnmatch_lines(["  * tokens of prompts and * of replies", "  cost: * USD"])
    assert '"currency":"USD"' in (project.folder / "pages" / "test_it.test_it.html").read_text()
