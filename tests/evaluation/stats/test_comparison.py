"""Two runs on the same tasks: the difference, and what it may be due to."""

import msgspec
import pytest
from msgspec import structs

from holdfast.evaluation.stats.comparison import (
    biggest_changes,
    compare,
    format_comparison,
    questions_of,
)
from holdfast.evaluation.stats.results import Results, RowResult, TaskQuestion
from holdfast.records.errors import UsageError
from holdfast.records.message import system, user
from holdfast.records.run import Code
from holdfast.records.sampling import Sampling
from support.evaluation.graded_runs import failed, results, running, scored, unscored
from support.records import make_tasks, spec


def graded(name, scores, **options):
    rows = tuple(RowResult(task, score=score) for task, score in scores.items())
    return Results(name, rows, **options)


A = graded("a", {f"t{number}": number % 2 for number in range(10)})
B = graded("b", {f"t{number}": 1.0 if number < 7 else number % 2 for number in range(10)})


def test_the_difference_is_told_with_its_error_and_chance():
    comparison = compare(A, B)
    assert comparison.paired.difference == pytest.approx(0.4)
    assert (comparison.paired.wins, comparison.paired.losses, comparison.paired.ties) == (4, 0, 6)
    # Of 16 patterns of four equal signs, two are as far from 0.
    assert comparison.paired.p_value == pytest.approx(0.125)
    lines = format_comparison(comparison).splitlines()
    assert lines[0] == "A a: 0.5000   B b: 0.9000   on 10 tasks of both"
    assert lines[1].startswith("  B - A: +0.4000 ± 0.1633 (SE), 95% [+0.1000, +0.7000], p = 0.125")
    assert lines[2] == "  B is higher on 4, lower on 0, the same on 6; sign test p = 0.125"


def test_turned_round_it_is_the_same_with_the_other_sign():
    assert compare(B, A).paired.difference == pytest.approx(-0.4)
    assert compare(B, A).paired.p_value == compare(A, B).paired.p_value


def test_the_biggest_changes_come_first():
    grade = graded("a", {"x": 0.0, "y": 0.5, "z": 1.0, "same": 0.3})
    other = graded("b", {"x": 0.2, "y": 0.4, "z": 0.0, "same": 0.3})
    comparison = compare(grade, other)
    assert [name for name, _ in biggest_changes(comparison.paired)] == ["z", "x", "y"]
    text = format_comparison(comparison)
    assert "  biggest changes\n    -1.0000  z\n    +0.2000  x\n    -0.1000  y" in text
    many = compare(
        graded("a", {f"t{i}": 0 for i in range(30)}), graded("b", {f"t{i}": 1 for i in range(30)})
    )
    assert "… and 20 other tasks that changed" in format_comparison(many)


def test_a_metric_is_compared_instead_of_the_score():
    a = results({"x": [scored(1.0, metrics={"m": 1.0})], "y": [scored(1.0, metrics={"m": 3.0})]})
    b = results({"x": [scored(0.0, metrics={"m": 2.0})], "y": [scored(0.0, metrics={"m": 5.0})]})
    comparison = compare(a, b, metric="m")
    assert comparison.paired.difference == pytest.approx(1.5)
    assert "(m)" in format_comparison(comparison)
    with pytest.raises(UsageError, match="run 'run' has no metric 'n'; it has m"):
        compare(a, b, metric="n")


def test_what_is_left_out_is_told():
    a = results({"x": [scored(1.0)], "y": [failed()], "only-a": [scored(1.0)]}, name="a")
    b = results({"x": [scored(0.5)], "y": [running()], "only-b": [scored(1.0)]}, name="b")
    text = format_comparison(compare(a, b))
    assert "left out: 1 task that only A has: only-a" in text
    assert "left out: 1 task that only B has: only-b" in text
    assert "A lacks 1 score of 3 rows (1 failed for good, 0 not settled)" in text
    assert "B lacks 1 score of 3 rows (0 failed for good, 1 not settled)" in text
    assert "(one task: its error is unknown)" in text


def test_what_differs_in_the_runs_is_told():
    a, b = (results({"x": [scored(1.0)]}, name=name) for name in "ab")
    assert compare(a, b).spec_differences == {}
    other = msgspec.structs.replace(b.spec, rollout="solve other", seed=7, samples=1)
    b = msgspec.structs.replace(b, spec=other, sampling=Sampling(temperature=0.2), model="larger")
    comparison = compare(a, b)
    assert comparison.spec_differences == {
        "model": ("model", "larger"),
        "sampling.temperature": ("1.0", "0.2"),
        "seed": ("None", "7"),
        "rollout": ("solve", "solve other"),
    }
    text = format_comparison(comparison)
    assert "    model: model → larger" in text
    assert "    rollout: solve → solve other" in text


def test_the_functions_that_changed_are_named_with_their_files():
    files = {"solve": "agent.py", "reward.size": "reward.py"}
    sides = []
    for name, number in (("a", 1), ("b", 2)):
        side = results({"x": [scored(1.0)]}, name=name)
        parts = {"solve": "same", "reward.size": str(number), "Contains.identity": str(number)}
        made = structs.replace(
            side.spec,
            rollout=f"solve@{number}",
            rollout_code=Code({"solve": str(number)}, files),
            scorer=f"size@{number}",
            scorer_code=Code(parts, files),
        )
        sides.append(structs.replace(side, spec=made))
    lines = format_comparison(compare(*sides)).splitlines()
    assert "    rollout: agent.py changed (solve)" in lines
    assert "    scorer: reward.py changed (reward.size); its code changed (Contains)" in lines


def test_a_changed_task_is_listed_with_its_shortened_prompt():
    tasks = make_tasks("x", "y")
    long = structs.replace(tasks[1], messages=(user("Which\nword? " + "apple " * 50 + "pear"),))
    questions = questions_of([tasks[0], long])
    a, b = (
        structs.replace(graded(name, {"x": reward, "y": 1 - reward}), questions=questions)
        for name, reward in (("a", 0.0), ("b", 1.0))
    )
    *_, first, second = format_comparison(compare(a, b)).splitlines()
    assert first == "    +1.0000  x  do x"
    assert second.startswith("    -1.0000  y  Which word? apple apple ")
    assert second.endswith("apple pear")
    assert " … " in second
    assert len(second) <= 100


def test_results_of_other_tools_are_compared_by_what_they_tell():
    mine = results({"x": [scored(1.0)]})
    theirs = graded("log", {"x": 0.0}, model="model", source="log.json")
    assert compare(mine, theirs).spec_differences == {}


@pytest.mark.parametrize(
    ("other", "arguments"),
    [
        (
            graded("b", {"z": 1.0}),
            "have no scored task in common: 'a' has 't0', 't1', 't2', …, 'b' has 'z'",
        ),
        (graded("b", {}), "run 'b' has no rows"),
        (
            results({"t0": [unscored()], "t1": [failed()], "t2": [running()]}, name="b"),
            "has no scores: of 3 rows, 1 not settled yet and 1 failed for good and 1 finished with",
        ),
        (
            results({"t0": [unscored()]}, name="b"),
            "of 1 row, 1 finished without a score: it has no scorer, and its rollout gives no",
        ),
        (
            msgspec.structs.replace(
                results({"t0": [unscored()]}, name="b"),
                spec=msgspec.structs.replace(spec(), scorer="strict@1"),
            ),
            "of 1 row, 1 finished without a score: its scorer gave no valid score",
        ),
        (
            msgspec.structs.replace(results({"t0": [running()]}, name="b"), spec=None),
            "run 'b' has no scores: of 1 row, 1 not settled yet",
        ),
    ],
)
def test_where_nothing_can_be_compared_it_says_why(other, arguments):
    with pytest.raises(UsageError) as caught:
        compare(A, other)
    assert arguments in str(caught.value)


def test_control_characters_in_ids_are_shown():
    evil = "\x1b[2Jt"
    text = format_comparison(compare(graded("a\n", {evil: 1.0}), graded("b", {evil: 0.0})))
    assert "\x1b" not in text
    assert "\\x1b[2Jt" in text


# --- tasks with the same id


def asking(run: str, scores: dict[str, float], **questions: str) -> Results:
    asked = {name: TaskQuestion(text, text) for name, text in questions.items()}
    return structs.replace(graded(run, scores), questions=asked)


def test_a_task_that_asks_something_else_is_another_one_and_that_is_said():
    a = asking("a", {"x": 0.0, "y": 0.0}, x="1+1", y="2+2")
    b = asking("b", {"x": 1.0, "y": 1.0}, x="1+1", y="3+3")
    comparison = compare(a, b)
    assert (comparison.paired.tasks, comparison.changed) == (1, ("y",))
    text = format_comparison(comparison)
    assert "left out: 1 task with other messages or another ground truth in B: y (--by-id" in text
    by_id = compare(a, b, by_id=True)
    assert by_id.paired.tasks == 2
    assert "compared by id alone: 1 task with other messages" in format_comparison(by_id)


def test_where_all_ask_something_else_it_says_what_to_do():
    a, b = asking("a", {"x": 0.0}, x="1+1"), asking("b", {"x": 1.0}, x="2+2")
    with pytest.raises(UsageError, match=r"ask something else \('x'\).*--by-id"):
        compare(a, b)


def test_where_nobody_knows_what_a_task_asks_its_id_counts():
    assert compare(asking("a", {"x": 0.0}, x="1+1"), graded("b", {"x": 1.0})).paired.tasks == 1


def test_what_is_asked_are_the_messages_but_for_system_messages_and_the_truth():
    (task,) = make_tasks("a")
    changed = structs.replace(task, messages=(system("Be kind."), *task.messages))
    assert questions_of([task]) == questions_of([changed])
    for other in (
        structs.replace(task, ground_truth=2),
        structs.replace(task, messages=(user("another"),)),
    ):
        assert questions_of([other]) != questions_of([task])
