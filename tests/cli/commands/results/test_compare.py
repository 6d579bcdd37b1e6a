"""`holdfast compare` and `holdfast report`, as a user runs them."""

import json
import re
import subprocess
import sys

import pytest

from holdfast.cli.main import main
from holdfast.policy.rendering.tokenizer import load_tokenizer
from holdfast.records.message import assistant
from support.evaluation.graded_runs import failed, journal_at, scored, unscored, with_tools
from support.policy.chat_models import write_model
from support.records import generated, spec

LOW = {f"t{number}": [scored(number % 2)] for number in range(8)}
HIGH = {f"t{number}": [scored(1.0)] for number in range(8)}


@pytest.fixture
def holdfast(capfd, monkeypatch):
    """The command line, in this process: its start is not what is tested here."""

    def run(*arguments, cwd):
        monkeypatch.chdir(cwd)
        try:
            code = main([str(word) for word in arguments])
        except SystemExit as left:
            code = left.code
        out, err = capfd.readouterr()
        return int(code), out, err

    return run


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """One journal with two graded runs and one without scores; another with a third."""
    place = tmp_path_factory.mktemp("runs")
    journal_at(
        place / "holdfast.db",
        (spec("low", samples=1), LOW),
        (spec("high", samples=1), HIGH),
        (spec("bare", samples=1), {"t0": [unscored()]}),
        (spec("talk", samples=2), {"kelp": [with_tools(), failed()]}),
    )
    journal_at(place / "other.db", (spec("high", samples=1), LOW))
    return place


def test_a_run_that_is_compared_with_itself_is_said_to_be(holdfast, place):
    _, out, err = holdfast("compare", "low", "low", cwd=place)
    assert "+0.0000" in out
    assert "low is compared with itself" in err


def test_two_runs_of_a_journal_are_compared(holdfast, place):
    code, out, err = holdfast("compare", "low", "high", cwd=place)
    assert (code, err) == (0, "")
    assert out.startswith("A low: 0.5000   B high: 1.0000   on 8 tasks of both\n  B - A: +0.5000")


def test_the_installed_command_knows_both(place):
    command = [sys.executable, "-m", "holdfast", "compare", "low", "high"]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=place, timeout=120, check=True
    )
    assert "B - A: +0.5000" in done.stdout


def test_json_is_one_object_for_scripts(holdfast, place):
    code, out, _ = holdfast("compare", "low", "high", "--json", cwd=place)
    data = json.loads(out)
    assert code == 0
    assert data["paired"]["difference"] == 0.5
    assert (data["a"]["run"], data["b"]["run"]) == ("low", "high")
    assert data["paired"]["by_task"]["t0"] == 1.0


def test_an_evaluation_is_found_without_its_journal(holdfast, place, tmp_path):
    (tmp_path / ".holdfast").mkdir()
    journal_at(tmp_path / ".holdfast" / "evaluations.db", (spec("test_sums", samples=1), HIGH))
    code, out, err = holdfast("compare", "test_sums", "test_sums", cwd=tmp_path)
    assert (code, err) == (0, "holdfast: test_sums is compared with itself\n")
    _, _, err = holdfast("compare", "test_sum", "test_sums", cwd=tmp_path)
    assert "did you mean test_sums?" in err
    journal_at(tmp_path / "holdfast.db", (spec("low", samples=1), LOW))
    code, out, err = holdfast("compare", "low", "test_sums", cwd=tmp_path)
    assert (code, err) == (0, "")
    assert "B - A: +0.5000" in out
    assert "there is no run" in holdfast("compare", "low", "gone", cwd=tmp_path)[2]
    named = ("compare", "low", "test_sums", "--journal", place / "holdfast.db")
    assert "there is no run 'test_sums'" in holdfast(*named, cwd=tmp_path)[2]


def test_the_second_run_may_be_in_another_journal(holdfast, place):
    code, out, _ = holdfast("compare", "high", "high", "--journal-b", "other.db", cwd=place)
    assert code == 0
    assert "B - A: -0.5000" in out


def test_a_file_of_rows_is_compared_with_a_run(holdfast, place):
    for name in ("low", "high"):
        arguments = ("export", name, "--what", "rows", "--out", f"{name}.jsonl")
        assert holdfast(*arguments, cwd=place)[0] == 0
    code, out, err = holdfast("compare", "low", "low.jsonl", cwd=place)
    assert (code, err) == (0, "")
    assert "B - A: +0.0000 ± 0.0000" in out
    assert "; no task differs" in out
    _, out, _ = holdfast("compare", "low.jsonl", "high.jsonl", "--journal", "gone.db", cwd=place)
    assert "B - A: +0.5000" in out


def test_a_run_goes_before_a_file_of_its_name(holdfast, place):
    (place / "bare").write_text("no results")
    _, _, err = holdfast("compare", "low", "bare", cwd=place)
    assert "run 'bare' has no scores" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("low", "hihg"), "there is no run 'hihg' in the journal; did you mean high?"),
        (("low", "bare"), "run 'bare' has no scores: of 1 row"),
        (("low", "gone/rows.jsonl"), "there is no file gone/rows.jsonl"),
        (("low", "talk"), "have no scored task in common"),
        (
            ("low", "high", "--metric", "speed"),
            "run 'low' has no metric 'speed'; it has no metrics",
        ),
        (("low", "high", "--journal", "none.db"), "there is no journal at none.db"),
        (("low", "high", "--journal-b", "none.db"), "there is no journal at none.db"),
    ],
)
def test_mistakes_are_one_clear_line(holdfast, place, arguments, message):
    code, out, err = holdfast("compare", *arguments, cwd=place)
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1


def test_a_report_is_written_and_told(holdfast, place):
    code, out, err = holdfast("report", "talk", "--out", "talk.html", cwd=place)
    assert (code, err) == (0, "")
    link = (place / "talk.html").as_uri()
    assert out == f"wrote 2 rows of run talk to talk.html\n{link}\n"
    assert (place / "talk.html").read_text().startswith("<!doctype html>")
    code, out, _ = holdfast("report", "talk", "--out", "talk.html", "--json", cwd=place)
    numbers = {"rows": 2, "unlisted": 0, "shortened": 0, "left_out": 0}
    assert json.loads(out) == {"path": "talk.html", **numbers}


def test_a_folder_with_the_tokenizer_shows_tokens(holdfast, place, tmp_path):
    folder = write_model(tmp_path / "model")
    code, _, err = holdfast("report", "talk", "--out", "t.html", "--tokenizer", folder, cwd=place)
    assert (code, err) == (0, "")
    (block,) = re.findall(r'id="t0">(.*)</script>', (place / "t.html").read_text())
    pieces, logprobs = json.loads(block)["0"]
    assert "".join(pieces) == load_tokenizer(folder).decode([76, 101, 116])
    assert len(pieces) == len(logprobs) == 3
    (place / "t.html").unlink()


def test_what_was_cut_is_told(holdfast, place):
    long = scored(1.0, generated("0", message=assistant("long " * 5_000)))
    journal_at(place / "long.db", (spec("long", samples=1), {"a": [long]}))
    arguments = ("report", "long", "--journal", "long.db", "--out", "l.html")
    code, _, err = holdfast(*arguments, cwd=place)
    assert code == 0
    assert "1 conversation shortened and 0 left out" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("tlak", "--out", "x.html"), "there is no run 'tlak'"),
        (("talk", "--out", "holdfast.db"), "is the journal itself"),
        (("talk", "--out", "nowhere/x.html"), "nowhere/x.html cannot be written: No such file"),
        (("talk", "--out", "."), "'.' cannot be written: it is not a regular file"),
        (("talk", "--out", "x.html", "--tokenizer", "gone"), "--tokenizer wants the folder"),
        (("talk", "--out", "x.html", "--max-megabytes", "0"), "--max-megabytes"),
    ],
)
def test_a_report_that_cannot_be_written_leaves_nothing(holdfast, place, arguments, message):
    before = sorted(path.name for path in place.iterdir())
    code, _, err = holdfast("report", *arguments, cwd=place)
    assert code == 2
    assert message in err
    assert sorted(path.name for path in place.iterdir()) == before
