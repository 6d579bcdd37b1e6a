"""Rows become tasks with stable, distinct ids, and a bad row is named by its line."""

import copy
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.records.errors import UsageError
from holdfast.records.message import user
from holdfast.records.task import Task, as_tasks, tasks_digest
from holdfast.tasks.read import read_tasks

prompts = st.lists(st.sampled_from("abc"), min_size=1, max_size=12)


def read(tmp_path: Path, *lines: str) -> list[Task]:
    path = tmp_path / "tasks.jsonl"
    path.write_text("\n".join(lines))
    return read_tasks(path)


@given(prompts)
def test_every_row_gets_an_id_of_its_own(rows: list[str]) -> None:
    ids = [task.id for task in as_tasks({"prompt": prompt} for prompt in rows)]
    assert len(set(ids)) == len(rows)


@given(prompts, st.integers(0, 12))
def test_inserting_an_unrelated_row_renames_nothing(rows: list[str], at: int) -> None:
    before = [task.id for task in as_tasks({"prompt": prompt} for prompt in rows)]
    more = [*rows[:at], "unrelated", *rows[at:]]
    after = [task.id for task in as_tasks({"prompt": prompt} for prompt in more)]
    del after[min(at, len(rows))]
    assert after == before


def test_ids_are_derived_from_what_a_rollout_reads() -> None:
    rows = [{"prompt": "a"}, {"prompt": "a", "ground_truth": "4"}, {"prompt": "a", "level": 1}]
    first, two, three = as_tasks(rows)
    assert re.fullmatch("row-[0-9a-f]{6}", first.id)
    assert two.id == f"{first.id}-2", "equal rows stay two tasks"
    assert three.id.partition("-")[2] not in first.id
    (corrected,) = as_tasks([{"prompt": "a", "ground_truth": "5"}])
    assert corrected.id == first.id, "a scorer's column names nothing"


def test_given_ids_are_kept_and_must_be_unique() -> None:
    assert [
        task.id for task in as_tasks([{"id": "x", "prompt": "a"}, {"id": 7, "prompt": "a"}])
    ] == [
        "x",
        "7",
    ]
    with pytest.raises(UsageError, match="task id 'x' is used 2 times"):
        as_tasks([{"id": "x", "prompt": "a"}, {"id": "x", "prompt": "b"}])


def test_a_prompt_is_a_user_message_and_other_columns_stay(tmp_path: Path) -> None:
    (task,) = read(tmp_path, '{"prompt": "hi", "level": 3, "metadata": {"source": "s"}}')
    assert task.messages == (user("hi"),)
    assert task.metadata == {"level": 3, "source": "s"}


def test_blank_lines_are_no_tasks(tmp_path: Path) -> None:
    assert len(read(tmp_path, "", '{"prompt": "a"}', "  ", '{"prompt": "b"}', "")) == 2


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("{", "not JSON"),
        ("[1]", "wants a JSON object, found list"),
        ('{"messages": [{"role": "robot"}]}', "robot"),
        ('{"prompt": 3}', "prompt is 3; it wants a text, or a list of messages"),
        ('{"prompt": "a", "metadata": "b"}', 'metadata is "b"; it wants a JSON object'),
        ('{"prompt": "a", "tools": ["b"]}', 'tools is ["b"]; it wants a list of JSON objects'),
        ('{"prompt": "a", "id": 1.5}', "id is 1.5; it wants a text or a whole number"),
        ('{"messages": [], "prompt": "a"}', "not both"),
        ('{"prompt": " "}', "the prompt is empty"),
        ("{}", "needs 'messages'"),
        ('{"id": "", "prompt": "a"}', "an id has 1 to 200 characters"),
        ('{"id": "' + "x" * 201 + '", "prompt": "a"}', "an id has 1 to 200 characters"),
    ],
)
def test_a_bad_line_is_named_by_its_number(tmp_path: Path, line: str, why: str) -> None:
    with pytest.raises(UsageError) as caught:
        read(tmp_path, '{"prompt": "fine"}', "", line)
    assert "tasks.jsonl:3: " in str(caught.value)
    assert why in str(caught.value)


def test_a_file_that_is_missing_or_empty_says_so(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not exist"):
        read_tasks(tmp_path / "none.jsonl")
    with pytest.raises(UsageError, match="has no tasks"):
        read(tmp_path, "", " ")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match="holds no data set"):
        read_tasks(tmp_path / "empty")


def test_the_digest_names_contents_and_order() -> None:
    rows = as_tasks([{"prompt": "a"}, {"prompt": "b"}])
    assert tasks_digest(rows) == tasks_digest(list(rows))
    assert tasks_digest(rows) != tasks_digest(rows[::-1])
    assert tasks_digest(rows) != tasks_digest(rows[:1])


def test_a_row_of_an_evaluation_is_a_task_with_its_nulls_reasoning_and_id() -> None:
    message = {"role": "assistant", "content": None, "reasoning_content": "hm", "tool_calls": None}
    row = {"messages": [message], "tools": None, "input_metadata": {"row_id": "calm-sea-1"}}
    first, two = as_tasks([row, row])
    assert (first.id, two.id) == ("calm-sea-1", "calm-sea-1-2")
    assert first.messages[0].reasoning == "hm"
    assert first.metadata["input_metadata"] == {"row_id": "calm-sea-1"}


def test_an_attribute_that_a_task_lacks_is_said_to_be_where_it_is():
    (task,) = as_tasks([{"prompt": "how many?", "answer": 4}])
    with pytest.raises(AttributeError, match=r"'answer'; .* task\.metadata\['answer'\]"):
        task.answer  # noqa: B018 - looking is the test
    with pytest.raises(AttributeError, match=r"'prompt'; it is the first of task\.messages"):
        task.prompt  # noqa: B018
    with pytest.raises(AttributeError, match=r"task\.metadata, which has 'answer'"):
        task.question  # noqa: B018
    assert copy.deepcopy(task) == task
    assert not hasattr(task, "question")


def test_an_id_that_is_derived_is_no_id_that_is_given() -> None:
    (task,) = as_tasks([{"prompt": "a"}])
    results = [task.id for task in as_tasks([{"prompt": "a"}, {"id": task.id, "prompt": "b"}])]
    assert results == [f"{task.id}-2", task.id]
    rows: list[dict[str, object]] = [
        {"prompt": "a", "input_metadata": {"row_id": name}} for name in ("r", "r", "r-2", "s")
    ]
    ids = [task.id for task in as_tasks([*rows, {"id": "s", "prompt": "b"}])]
    assert ids == ["r", "r-2", "r-2-2", "s-2", "s"]
