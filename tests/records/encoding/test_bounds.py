"""A task that no journal could hold, or no model could be asked, is refused when it is read."""

import json
import math
from pathlib import Path

import msgspec
import pytest

from holdfast.records.encoding.bounds import check_characters
from holdfast.records.errors import UsageError
from holdfast.records.message import user
from holdfast.records.task import Task, as_tasks, own
from holdfast.tasks.read import read_tasks

HUGE = 123456789012345678901234567890


def refused(tmp_path: Path, *lines: str) -> str:
    path = tmp_path / "tasks.jsonl"
    path.write_text("\n".join(lines))
    with pytest.raises(UsageError) as caught:
        read_tasks(path)
    return str(caught.value).removeprefix(str(tmp_path) + "/")


@pytest.mark.parametrize(
    ("row", "field"),
    [
        (f'{{"prompt": "a", "ground_truth": {HUGE}}}', "ground_truth"),
        (f'{{"prompt": "a", "ground_truth": {-HUGE}}}', "ground_truth"),
        (f'{{"prompt": "a", "level": {2**64}}}', "level"),
        (f'{{"prompt": "a", "metadata": {{"n": [1, {HUGE}]}}}}', "metadata.n[1]"),
        (f'{{"prompt": "a", "tools": [{{"name": "f", "most": {HUGE}}}]}}', "tools[0].most"),
        (
            f'{{"messages": [{{"role": "user", "content": [{{"x": {HUGE}}}]}}]}}',
            "messages[0].content[0].x",
        ),
    ],
)
def test_an_integer_that_records_cannot_hold_is_named_by_its_field(tmp_path, row, field) -> None:
    text = f"{field} is an integer of more than 64 bits; write it as a string"
    assert refused(tmp_path, '{"prompt": "fine"}', row) == f"tasks.jsonl:2: {text}"
    with pytest.raises(UsageError) as caught:
        as_tasks([{"prompt": "fine"}, msgspec.json.decode(row)])
    assert str(caught.value) == f"task 2: {text}"


@pytest.mark.parametrize(
    ("row", "field"),
    [
        ('{"prompt": "a", "level": NaN}', "level is nan"),
        ('{"prompt": "a", "level": -Infinity}', "level is -inf"),
        ('{"prompt": "a", "ground_truth": 1e999}', "ground_truth is inf"),
        ('{"prompt": "a", "metadata": {"n": [1, {"deep": NaN}]}}', "metadata.n[1].deep is nan"),
    ],
)
def test_a_number_that_json_does_not_have_is_named_by_its_field(tmp_path, row, field) -> None:
    text = f"{field}, a number that JSON does not have; write null, or a string"
    assert refused(tmp_path, '{"prompt": "fine"}', row) == f"tasks.jsonl:2: {text}"
    with pytest.raises(UsageError) as caught:
        as_tasks([{"prompt": "fine"}, json.loads(row)])
    assert str(caught.value) == f"task 2: {text}"


def test_a_task_made_by_hand_keeps_numbers_that_json_does_not_have() -> None:
    (task,) = as_tasks([Task("a", ground_truth=math.nan, metadata={"most": math.inf})])
    read = own(task)
    assert math.isnan(float(str(read.ground_truth)))
    assert read.metadata == {"most": math.inf}


def test_a_set_is_refused_since_each_process_has_its_own_order_of_it() -> None:
    with pytest.raises(
        UsageError, match=r"task 1: metadata.tags\[0\] is a set, which has no order"
    ):
        as_tasks([{"prompt": "a", "metadata": {"tags": [{"x", "y"}]}}])


def test_the_largest_integers_that_records_hold_are_kept() -> None:
    most = {"most": 2**64 - 1, "least": -(2**63)}
    (task,) = as_tasks([{"id": HUGE, "prompt": "a", "ground_truth": most}])
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(task), type=Task) == task
    assert (task.id, task.ground_truth) == (str(HUGE), most)


@pytest.mark.parametrize(
    ("task", "why"),
    [
        (Task("a", ground_truth=[HUGE]), r"ground_truth\[0\] is an integer of more than 64 bits"),
        (Task("a", (user("\ud800"),)), r"messages\[0\].content has half of a character"),
        (Task("a", ground_truth=object()), "Encoding objects of type object"),
        (Task(5), "Expected `str`, got `int` - at `.*id`"),  # type: ignore[arg-type]
        (Task(""), "an id has 1 to 200 characters"),
        (Task("a", tools=({"type": "function"},)), r"tools\[0\] names no function"),
    ],
)
def test_a_task_made_by_hand_is_held_to_the_same(task: Task, why: str) -> None:
    with pytest.raises(UsageError, match=f"^task 1: {why}"):
        as_tasks([task])


@pytest.mark.parametrize("half", [r"\ud800", r"\udc00", r"\ud83d and on", r"\ud83dA"])
def test_half_a_character_is_told_as_such(tmp_path: Path, half: str) -> None:
    text = "has half of a character, a lone surrogate; write the whole or none"
    assert refused(tmp_path, f'{{"prompt": "x {half}"}}') == f"tasks.jsonl:1: prompt {text}"
    row = f'{{"prompt": "a", "metadata": {{"{half}": 1}}}}'
    assert refused(tmp_path, row) == f"tasks.jsonl:1: a key of metadata {text}"
    with pytest.raises(UsageError, match=f"^task 1: prompt {text}"):
        as_tasks([{"prompt": "x \ud800"}])


def test_a_whole_pair_of_surrogates_is_a_character(tmp_path: Path) -> None:
    path = tmp_path / "tasks.jsonl"
    path.write_text(r'{"prompt": "\ud83d\ude00"}')
    assert read_tasks(str(path))[0].messages == (user("\U0001f600"),)


@pytest.mark.parametrize("row", [{"prompt": "a", "ground_truth": object()}, {("a",): 1}])
def test_a_row_that_is_no_json_is_refused_by_its_number(row: dict[str, object]) -> None:
    with pytest.raises(UsageError, match=r"^task 1: "):
        as_tasks([row])


def test_a_row_within_itself_is_refused() -> None:
    row: dict[str, object] = {"prompt": "a"}
    row["ground_truth"] = row
    with pytest.raises(UsageError, match=r"^task 1: nested too deeply, or within itself"):
        as_tasks([row])


def test_an_unknown_role_is_told_with_those_there_are(tmp_path: Path) -> None:
    refusal = refused(tmp_path, '{"messages": [{"role": "usr", "content": "a"}]}')
    assert refusal == (
        "tasks.jsonl:1: messages[0]: role is 'usr'; "
        "the roles are system, user, assistant, tool, developer"
    )


def test_an_id_that_is_used_twice_is_told_with_its_lines(tmp_path: Path) -> None:
    row = '{"id": "x", "prompt": "a"}'
    refusal = refused(tmp_path, row, "", '{"prompt": "a"}', row)
    assert "tasks.jsonl: task id 'x' is used 2 times, in lines 1, 4; give each" in refusal
    assert "is used 7 times, in lines 1, 2, 3, 4, 5, …; give" in refused(tmp_path, *[row] * 7)
    with pytest.raises(UsageError, match="is used 2 times, in tasks 2, 3; give"):
        as_tasks([{"prompt": "a"}, Task("x"), {"id": "x", "prompt": "a"}])


@pytest.mark.parametrize(
    "tool",
    [
        '{"type": "function"}',
        '{"type": "function", "function": {}}',
        '{"type": "function", "function": {"name": ""}}',
        '{"type": "function", "function": "f", "name": "f"}',
        "{}",
    ],
)
def test_a_tool_without_a_function_is_refused(tmp_path: Path, tool: str) -> None:
    good = '{"type": "function", "function": {"name": "f"}}'
    refusal = refused(tmp_path, f'{{"prompt": "a", "tools": [{good}, {tool}]}}')
    assert refusal.startswith("tasks.jsonl:1: tools[1] names no function; it wants {")


@pytest.mark.parametrize(
    "tool",
    [
        {"type": "function", "function": {"name": "f", "parameters": {}}},
        {"type": "function", "name": "f"},
        {"name": "f", "input_schema": {}},
        {"type": "web_search"},
    ],
)
def test_tools_of_any_api_are_kept(tool: dict[str, object]) -> None:
    (task,) = as_tasks([{"prompt": "a", "tools": [tool]}])
    assert task.tools == (tool,)


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        ("good.jsonl", "read that with holdfast.read_tasks"),
        (Path("good.jsonl"), "read that with holdfast.read_tasks"),
        ({"prompt": "a"}, "tasks is one task, not a list"),
        (Task("a"), "tasks is one task, not a list"),
        (3, "tasks is of type int; give a list of tasks"),
    ],
)
def test_what_is_no_list_of_tasks_is_told_what_to_give(rows: object, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        as_tasks(rows)  # type: ignore[arg-type]


def test_half_of_a_character_is_refused() -> None:
    check_characters("run", "ü\0😀")
    with pytest.raises(UsageError, match=r"run 'a\\ud800' has half of a character"):
        check_characters("run", "a\ud800")
