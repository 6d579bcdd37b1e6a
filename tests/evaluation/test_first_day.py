"""What people do on their first day, and what they are told when it goes wrong."""

from fnmatch import fnmatch
from pathlib import Path
from urllib.parse import unquote, urlsplit
from xml.etree import ElementTree

import pytest

from holdfast.evaluation import evaluation_test
from holdfast.evaluation.running.session import EvaluationSession
from holdfast.evaluation.stats.summary import _from_user_code
from holdfast.records.errors import UsageError
from support.evaluation.evaluation_project import EvaluationProject

DUEL = """
@evaluation_test(
    dataset=ROWS,
    mode="groupwise",
    completion_params=[{"temperature": 0.2}, {"temperature": 1.0}],
    passed_threshold=THRESHOLD,
)
def test_duel(rows):
    return [0.25, 0.75]
"""
RUNS = [f"test_it.test_duel[temperature={item}]" for item in ("0.2", "1.0")]


def test_each_run_of_a_duel_has_its_own_score_wherever_scores_are_told(
    project: EvaluationProject,
) -> None:
    project.write(DUEL.replace("THRESHOLD", "0.1"))
    result = project.run("--holdfast-print-summary", "--junitxml", "junit.xml")
    result.assert_outcomes(passed=1)
    for name, score in zip(RUNS, ("0.2500", "0.7500"), strict=True):
        result.stdout.fnmatch_lines([f"holdfast: {_plain(name)}: {score} *"])
    results_found = {
        item.attrib["name"]: item.attrib["value"]
        for item in ElementTree.parse(project.folder / "junit.xml").iter("property")
    }
    assert [results_found[f"score:{name}"] for name in RUNS] == ["0.25", "0.75"]
    assert [results_found[f"rows:{name}"] for name in RUNS] == ["4", "4"]
    assert results_found["run"] == ",".join(RUNS)
    assert "score" not in results_found, "no run's score is the score of all"


def test_each_run_of_a_duel_that_failed_is_in_the_section_of_evaluations(
    project: EvaluationProject,
) -> None:
    project.write(DUEL.replace("THRESHOLD", "0.5"))
    result = project.run()
    result.assert_outcomes(failed=1)
    section = result.stdout.str().partition("= evaluations =")[2].partition("= short test")[0]
    lines = [line for line in section.splitlines() if line.startswith("test_it.test_duel[")]
    assert [line.partition(": ")[0] for line in lines] == RUNS
    assert "FAILED" in lines[0]
    assert "PASSED" in lines[1]


def _plain(text: str) -> str:
    """For fnmatch, to which brackets mean something."""
    return text.replace("[", "[[]")


def test_the_session_says_where_the_files_are_that_were_asked_for(
    project: EvaluationProject,
) -> None:
    project.write(
        """
        @evaluation_test(dataset=ROWS)
        def test_it(row):
            return 1.0
        """
    )
    result = project.run("--holdfast-report", "pages", "--holdfast-output-dir", "rows")
    result.stdout.fnmatch_lines(
        ["pages are in pages", "rows are in rows", "the summary is in summary.json"]
    )
    page = project.folder / "pages" / "test_it.test_it.html"
    assert page.exists()
    result.stdout.fnmatch_lines(["*= evaluations =*", "test_it.test_it: *", page.as_uri()])


def test_the_summary_of_a_session_has_the_first_rows_with_their_texts(
    project: EvaluationProject,
) -> None:
    project.write(
        """
        @evaluation_test(dataset=[{**ROWS[n % 4], "id": f"r{n}"} for n in range(10)])
        def test_it(row):
            if row.input_metadata.row_id == "r1":
                return Score(None, reasons={"judge": "it cannot tell"})
            return 1.0
        """
    )
    result = project.run("--holdfast-report", "pages")
    section = result.stdout.str().partition("= evaluations =")[2].splitlines()
    head = next(at for at, line in enumerate(section) if line.startswith("row "))
    assert section[head].split() == ["row", "status", "reward", "input", "target", "answer"]
    first, second, why, *others = section[head + 1 : head + 10]
    assert first.split()[:7] == ["r0/0", "COMPLETED", "1", "What", "is", "0?", "0"]
    assert second.split()[:3] == ["r1/0", "COMPLETED", "none"]
    assert why == "  no score: judge: it cannot tell"
    assert [line.split()[0] for line in others] == [f"r{n}/0" for n in range(2, 8)]
    assert section[head + 10].startswith("… and 2 more (holdfast report test_it.test_it --all ")
    (outcome,) = project.outcomes()
    assert outcome["pages"] == [(project.folder / "pages" / "test_it.test_it.html").as_uri()]


def test_each_run_has_the_link_of_its_page_also_if_it_failed_in_a_worker(
    project: EvaluationProject,
) -> None:
    project.write(DUEL.replace("THRESHOLD", "0.5"))
    arguments = ("-p", "xdist.plugin", "-n", 1, "--holdfast-report", "pages")
    printed, _ = project.apart(*arguments).communicate()
    section = printed.partition("= evaluations =")[2]
    links = [line for line in section.splitlines() if line.startswith("file://")]
    pages = [Path(unquote(urlsplit(link).path)) for link in links]
    assert len(set(pages)) == len(RUNS)
    for page, name in zip(pages, RUNS, strict=True):
        assert page.is_relative_to(project.folder / "pages")
        assert name in page.read_text(encoding="utf-8")


@pytest.mark.parametrize("flag", ["report", "output-dir", "summary"])
def test_a_place_that_cannot_be_written_to_is_told_before_anything_is_done(
    project: EvaluationProject, flag: str
) -> None:
    project.write("")
    (project.folder / "occupied").write_text("a file")
    result = project.run(f"--holdfast-{flag}", "occupied/inside")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"*--holdfast-{flag}*occupied' is not a folder*"])
    assert project.engine.stats().requests == 0


def test_a_summary_that_cannot_be_written_at_the_end_costs_no_verdict(
    project: EvaluationProject,
) -> None:
    project.write(
        """
        from pathlib import Path

        @evaluation_test(dataset=ROWS)
        def test_it(row):
            Path("late").write_text("in the way")
            return 1.0
        """
    )
    result = project.run("--holdfast-summary", "late/summary.json")
    assert result.ret == pytest.ExitCode.INTERNAL_ERROR
    result.stdout.fnmatch_lines(
        ["*4 of 4 rows scored*", "--holdfast-summary late/summary.json cannot be written: *"]
    )


def test_rows_that_cannot_be_written_are_still_in_the_journal_and_that_is_said(
    project: EvaluationProject,
) -> None:
    project.write(
        """
        from pathlib import Path

        @evaluation_test(dataset=ROWS)
        def test_it(row):
            Path("late").write_text("in the way")
            return 1.0
        """
    )
    project.run("--holdfast-output-dir", "late/rows").stdout.fnmatch_lines(
        ["*--holdfast-output-dir late/rows cannot be written to (*the same command with another*"]
    )
    spent = project.engine.stats().tokens
    project.run("--holdfast-output-dir", "rows").assert_outcomes(passed=1)
    assert len((project.folder / "rows" / "test_it.test_it.jsonl").read_text().splitlines()) == 4
    assert project.engine.stats().tokens == spent


def test_a_root_that_cannot_hold_the_journal_is_told_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / ".holdfast").write_text("a file, where the folder should be")
    with pytest.raises(UsageError, match=r"cannot be written to \(.*\); .*--holdfast-journal FILE"):
        EvaluationSession(root=tmp_path).journal()


def test_a_decorator_without_parentheses_is_told_so() -> None:
    with pytest.raises(UsageError, match=r"write @evaluation_test\(dataset=…\)"):
        evaluation_test(lambda row: 1.0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"datasets": []}, "'datasets'; is 'dataset' meant"),
        ({"treshold": 0.5}, "'treshold'; is 'passed_threshold' meant"),
        ({"xyzzy": 1}, "'xyzzy'; docs/evaluations.md"),
    ],
)
def test_an_unknown_argument_is_told_with_the_nearest_known(
    arguments: dict[str, object], message: str
) -> None:
    with pytest.raises(UsageError, match=f"^test_first_day.py::judge: .*{message}"):

        @evaluation_test(**arguments)  # type: ignore[arg-type]
        def judge(row: object) -> float:
            return 1.0


@pytest.mark.parametrize(
    ("decorator", "message"),
    [
        ("@evaluation_test", "test_it: evaluation_test wants named arguments*"),
        ("@evaluation_test(datset=ROWS)", "test_it: *is 'dataset' meant?"),
        ("@evaluation_test(dataset=ROWS, samples=0)", "test_it: samples must be 1 or more, not 0"),
        (
            "@evaluation_test(dataset=ROWS, completion_params={'temprature': 1})",
            "test_it: *unknown completion parameter 'temprature'; is 'temperature' meant?*",
        ),
        ("@evaluation_test()", "test_it: it has no rows: give @evaluation_test dataset=*"),
        ("@evaluation_test(dataset=ROWS, mode='groupwise')", "test_it: *parameter named 'rows'*"),
    ],
)
def test_a_mistake_in_the_decorator_is_one_line_that_names_the_evaluation(
    project: EvaluationProject, decorator: str, message: str
) -> None:
    project.write(f"{decorator}\ndef test_it(row):\n    return 1.0\n")
    result = project.run()
    result.assert_outcomes(errors=1)
    shown = result.stdout.str().partition("ERROR collecting test_it.py")[2]
    (line,) = [line for line in shown.splitlines() if line.startswith("test_it.py::")]
    assert fnmatch(line, f"test_it.py::{message}")
    assert "holdfast/" not in shown, "frames of ours"


def test_another_mistake_where_a_file_is_imported_has_its_line(project: EvaluationProject) -> None:
    project.write("from holdfast import Judge\n\nJudge('Is it right?', policy=None)\n", head="")
    result = project.run()
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["test_it.py:3: a judge wants a policy of its own*"])
    assert "holdfast/" not in result.stdout.str(), "frames of ours"


def test_an_empty_data_set_is_called_by_the_name_that_was_given() -> None:
    with pytest.raises(UsageError, match=r"judge: dataset is empty"):

        @evaluation_test(dataset=[])
        def judge(row: object) -> float:
            return 1.0


def test_empty_kwargs_of_a_processor_say_nothing() -> None:
    @evaluation_test(dataset=[{"prompt": "?"}], rollout_processor_kwargs={})
    def judge(row: object) -> float:
        return 1.0

    with pytest.raises(UsageError, match="unknown completion parameter 'x'"):

        @evaluation_test(dataset=[{"prompt": "?"}], rollout_processor_kwargs={"x": 1})
        def judge_too(row: object) -> float:
            return 1.0


def test_a_missing_file_is_told_with_where_it_was_looked_for(project: EvaluationProject) -> None:
    project.write(
        """
        @evaluation_test(dataset="nowhere.jsonl")
        def test_it(row):
            return 1.0
        """
    )
    project.run().stdout.fnmatch_lines(["*nowhere.jsonl does not exist; *beside the test file*"])


def test_a_traceback_begins_in_the_code_of_whoever_reads_it(project: EvaluationProject) -> None:
    project.write(
        """
        def deeper(row):
            raise KeyError("answer")

        @evaluation_test(dataset=ROWS)
        def test_it(row):
            return deeper(row)
        """
    )
    result = project.run()
    result.stdout.fnmatch_lines(
        ["*correct the function and run it again, or*--holdfast-retry-failed*"]
    )
    result.stdout.fnmatch_lines(["*test_it.py*in test_it*", "*test_it.py*in deeper*"])
    result.stdout.no_fnmatch_line("*src/holdfast/*")


def test_a_traceback_of_our_code_alone_is_shown_whole() -> None:
    ours = f'  File "{Path(evaluation_test.__code__.co_filename)}", line 1, in there'
    lines = ["Traceback (most recent call last):", ours, "ValueError: ours"]
    assert _from_user_code(lines) == lines


@evaluation_test(dataset=[{"prompt": "?"}])
def judge_alone(row: object) -> float:
    return 1.0


def test_outside_pytest_an_argument_that_is_not_taken_is_refused_before_any_rollout() -> None:
    evaluate = judge_alone.evaluate  # type: ignore[attr-defined]
    with pytest.raises(UsageError, match="judge_alone takes no 'z'"):
        evaluate(arguments={"z": 1}, policy="http://127.0.0.1:9", journal="memory:")
    with pytest.raises(UsageError, match="no variant 'hot'; it has but one: leave it out"):
        evaluate(variant="hot", policy="http://127.0.0.1:9", journal="memory:")


def test_a_prompt_where_a_path_is_wanted_is_told_how_to_be_written() -> None:
    @evaluation_test(dataset=["What is 1 + 1?"])
    def judge(row: object) -> float:
        return 1.0

    with pytest.raises(UsageError, match=r'write a prompt as {"prompt": …}'):
        judge.evaluate(policy="http://127.0.0.1:9", journal="memory:")  # type: ignore[attr-defined]


def test_while_an_evaluation_runs_python_looks_for_cycles_less_often(
    project: EvaluationProject,
) -> None:
    project.write("""
        import gc

        BEFORE = gc.get_threshold()

        @evaluation_test(dataset=ROWS)
        def test_it(row):
            return float(gc.get_threshold()[0] > BEFORE[0])

        def test_afterwards():
            assert gc.get_threshold() == BEFORE
    """)
    project.run().assert_outcomes(passed=2)
    assert project.outcomes()[0]["runs"][0]["agg_score"] == 1.0
