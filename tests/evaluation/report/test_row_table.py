"""Rows on the terminal: by task, in columns that fit, whatever characters are in them."""

import json
from collections.abc import Sequence

import pytest
from msgspec import structs
from rich.cells import cell_len

from holdfast.evaluation.report.preview import Preview
from holdfast.evaluation.report.row_table import ReportRow, table_lines
from holdfast.testing import FakeEngine
from support.cli.shell import CommandLine

LONG = "a text that goes on and on, " * 8


def row(
    task: str, sample: int = 0, *, reward: float | None = 1.0, texts: Sequence[str] = ("", "", "")
) -> ReportRow:
    return ReportRow(task, sample, "COMPLETED", reward, Preview(*texts))


def table(*rows: ReportRow, width: int = 100) -> list[str]:
    rewards: dict[str, list[float | None]] = {}
    for each in rows:
        rewards.setdefault(each.task, []).append(each.reward)
    return table_lines(rows, rewards, width=width)


def test_a_row_has_its_input_target_and_answer_under_their_heads() -> None:
    head, line = table(row("a", texts=("What is 1+1?", "2", "It is 2.")))
    assert line.split() == ["a/0", "COMPLETED", "1", "What", "is", "1+1?", "2", "It", "is", "2."]
    for name, text in (("input", "What"), ("target", "2"), ("answer", "It")):
        assert line[head.index(name) :].startswith(text)


def test_samples_of_a_task_stand_under_their_mean_and_its_input_is_there_once() -> None:
    texts = [("What?", "yes", answer) for answer in ("yes", "no", "perhaps")]
    rewards = (1.0, 0.0, None)
    rows = [row("a", n, reward=rewards[n], texts=texts[n]) for n in range(3)]
    _, head, *samples, other = table(*rows, row("b", texts=("Who?", "", "me")))
    assert head.split() == ["a", "3", "samples", "mean", "0.5", "What?", "yes"]
    assert [line.split() for line in samples] == [
        ["a/0", "COMPLETED", "1", "yes"],
        ["a/1", "COMPLETED", "0", "no"],
        ["a/2", "COMPLETED", "none", "perhaps"],
    ]
    assert other.split() == ["b/0", "COMPLETED", "1", "Who?", "me"]


def test_why_a_row_has_no_score_is_said_below_it_on_one_line() -> None:
    unscored = structs.replace(row("a", reward=None), reason="judge: no\nverdict " * 40)
    _, line, why, other = table(unscored, row("b"), width=80)
    assert line.split() == ["a/0", "COMPLETED", "none"]
    assert why.startswith(r"  no score: judge: no\nverdict judge:")
    assert cell_len(why) == 80
    assert other.startswith("b/0")


@pytest.mark.parametrize("width", [80, 81, 100, 200])
@pytest.mark.parametrize("text", [LONG, "数学の問題を解く" * 12, "🙂👍" * 40], ids=["a", "b", "c"])
def test_lines_are_no_wider_than_the_terminal_and_columns_stay_aligned(
    text: str, width: int
) -> None:
    rows = [
        row("task-" + text, texts=(text, text, f"|{text}")),
        row("b", texts=("short", text, "|here")),
        row("c", texts=(text, "短い", "|there")),
    ]
    lines = table(*rows, width=width)
    assert max(map(cell_len, lines)) <= width
    assert any("…" in line for line in lines)
    begins = {cell_len(line.partition("|")[0]) for line in lines[1:]}
    assert len(begins) == 1


def test_a_short_column_leaves_its_cells_to_the_long_ones() -> None:
    _, line = table(row("a", texts=(LONG, "2", LONG)), width=100)
    assert cell_len(line) in (99, 100)


def test_what_a_model_says_cannot_steer_the_terminal() -> None:
    _, line = table(row("a", texts=("\x1b[2Jx", "", "\x07\u202e sk-abcdefghijklmnop")))
    assert "\x1b" not in line
    assert "\x07" not in line
    assert "\u202e" not in line
    assert "\\x1b[2Jx" in line
    assert "abcdefghijklmnop" not in line


# --- the command


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> CommandLine:
    with FakeEngine(replies=["It is 2."]) as engine:
        shell = CommandLine(tmp_path_factory.mktemp("rows"), engine)
        shell.tasks(*(f"sum-{number}" for number in range(21)))
        shell.finished_run("--samples", 2)
    return shell


def test_report_lists_the_first_rows_and_all_of_them_where_that_is_wanted(ran: CommandLine) -> None:
    printed = ran.holdfast("report", "r", env={"COLUMNS": "90"}).out
    numbers, _, listed = printed.partition("\n\n")
    assert "42 trajectories" in numbers
    head, *lines = listed.splitlines()
    assert head.split() == ["row", "status", "reward", "input", "target", "answer"]
    assert max(map(cell_len, lines)) <= 90
    assert sum("/" in line.split()[0] for line in lines) == 40
    assert lines[-1] == "… and 2 more (--all)"
    everything = ran.holdfast("report", "r", "--all").out
    assert "sum-20/1" in everything
    assert "more (--all)" not in everything


def test_report_as_json_has_every_row_with_its_texts(ran: CommandLine) -> None:
    rows = json.loads(ran.holdfast("report", "r", "--json").out)["rows"]
    assert [(row["task"], row["sample"]) for row in rows[-2:]] == [("sum-20", 0), ("sum-20", 1)]
    assert len(rows) == 42
    texts = {"input", "target", "answer", "reason"}
    assert rows[0].keys() == {"task", "sample", "status", "reward"} | texts
    assert all(row["input"] for row in rows)
    assert {row["answer"] for row in rows} == {"It is 2."}
