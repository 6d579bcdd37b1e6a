"""Where rows come from: files, folders, lists, generators; and the ids that they get."""

import asyncio
import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from holdfast.evaluation.data.dataset import Dataset, datasets_of, default_dataset_adapter
from holdfast.evaluation.eval_protocol.adapters import (
    assistant_to_ground_truth,
    create_rows_from_indices,
    multi_turn_assistant_to_ground_truth,
)
from holdfast.evaluation.eval_protocol.loaders import DynamicDataLoader, InlineDataLoader
from holdfast.evaluation.rows.row import EvaluationRow, InputMetadata, Message
from holdfast.records.errors import UsageError
from holdfast.records.message import user
from holdfast.records.task import Task
from holdfast.tasks.read import read_tasks
from support.evaluation.evaluation_project import EvaluationProject
from support.paths import FIXTURES


def rows_of(**arguments: object) -> list[EvaluationRow]:
    (dataset,) = datasets_of(**arguments)
    return asyncio.run(dataset.rows())


def questions(rows: list[EvaluationRow]) -> list[str]:
    return [row.messages[-1].content for row in rows]


def ids(rows: list[EvaluationRow]) -> list[str]:
    return [row.input_metadata.row_id for row in rows]


def ask(text: str, **more: object) -> dict[str, object]:
    return {"messages": [{"role": "user", "content": text}], **more}


def written(path: Path, *rows: object) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


# --- files


def test_a_jsonl_file_is_read_with_its_columns(tmp_path):
    path = written(tmp_path / "a.jsonl", ask("ü 🌊", level=3), {"prompt": "b", "id": 7})
    rows = rows_of(input_dataset=str(path))
    assert questions(rows) == ["ü 🌊", "b"]
    assert rows[0].level == 3
    assert ids(rows)[1] == "7"


def test_several_files_are_one_data_set_or_one_each(tmp_path):
    paths = [str(written(tmp_path / f"{name}.jsonl", ask(name))) for name in "ab"]
    assert questions(rows_of(input_dataset=paths)) == ["a", "b"]
    each = datasets_of(input_dataset=paths, combine_datasets=False)
    assert [item.name for item in each] == ["a", "b"]


def test_a_bad_line_is_told_with_its_number_and_reason(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"prompt": "a"}\n\n{"prompt": \n')
    with pytest.raises(UsageError, match=r"a\.jsonl:3: not JSON"):
        rows_of(input_dataset=path)
    path.write_text("[1]\n")
    with pytest.raises(UsageError, match=r"a\.jsonl:1: wants a JSON object, found list"):
        rows_of(input_dataset=path)
    path.write_text('{"messages": [{"content": "no role"}]}\n')
    with pytest.raises(UsageError, match=r"a\.jsonl:1: messages\[0\] has no 'role'"):
        rows_of(input_dataset=path)
    path.write_text('{"question": "q", "answer": "a"}\n')
    with pytest.raises(UsageError, match=r"question, answer: .* columns={'prompt': 'question'}"):
        rows_of(input_dataset=path)


def test_columns_become_fields_as_in_a_run(tmp_path):
    fields = [{"question": "1 + 1?", "answer": "2", "prompt": "other", "level": 3}]
    columns = {"prompt": "question", "ground_truth": "answer"}
    path = written(tmp_path / "a.jsonl", *fields)
    (tmp_path / "a.csv").write_text("question,answer,level\n1 + 1?,2,3\n")
    for source in (path, tmp_path / "a.csv", fields):
        (row,) = rows_of(input_dataset=source, columns=columns)
        (task,) = read_tasks(source, columns=columns)
        assert (questions([row]), row.ground_truth) == (["1 + 1?"], "2")
        assert ids([row]) == [task.id]
        assert str(row.level) == "3"
        assert not hasattr(row, "question")


def test_columns_are_fields_before_the_adapter_is_called(tmp_path):
    path = written(tmp_path / "a.jsonl", {"question": "a"}, {"question": "b"})
    rows = rows_of(
        input_dataset=path,
        columns={"prompt": "question"},
        dataset_adapter=lambda rows: [ask(row["prompt"] * 2) for row in rows],
    )
    assert questions(rows) == ["aa", "bb"]


def test_a_wrong_column_is_named_with_its_line_as_in_a_run(tmp_path):
    path = written(tmp_path / "a.jsonl", {"question": "a"}, {"query": "b"})
    for read in (partial(rows_of, input_dataset=path), partial(read_tasks, path)):
        with pytest.raises(UsageError, match=r"a\.jsonl:2 has no column 'question'; it has query"):
            read(columns={"prompt": "question"})
        with pytest.raises(UsageError, match=r"a task has no field 'promt'.*'prompt' meant"):
            read(columns={"promt": "question"})
    with pytest.raises(UsageError, match="row 1 has no columns: it is of type EvaluationRow"):
        rows_of(input_rows=[EvaluationRow(messages=[])], columns={"prompt": "question"})


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(UsageError, match=r"nowhere\.jsonl does not exist"):
        rows_of(input_dataset="nowhere.jsonl")
    with pytest.raises(UsageError, match="cannot be fetched"):
        rows_of(input_dataset="http://127.0.0.1:1/a.jsonl")
    with pytest.raises(UsageError, match="holds no data set"):
        rows_of(input_dataset=tmp_path)


def test_a_relative_path_is_looked_for_beside_the_test(tmp_path):
    written(tmp_path / "beside.jsonl", ask("a"))
    assert questions(rows_of(input_dataset="beside.jsonl", beside=tmp_path)) == ["a"]


def test_a_byte_order_mark_and_a_json_list_are_read(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(b'\xef\xbb\xbf{"prompt": "a"}\r\n')
    (tmp_path / "b.json").write_text('[{"prompt": "b"}]')
    (tmp_path / "c.json").write_text('{"prompt": "c"}\n{"prompt": "d"}')
    paths = [tmp_path / "a.jsonl", tmp_path / "b.json", tmp_path / "c.json"]
    assert questions(rows_of(input_dataset=paths)) == ["a", "b", "c", "d"]


# --- folders


def test_a_folder_that_hugging_face_saved_is_read(tmp_path):
    rows = rows_of(input_dataset=FIXTURES / "hf_saved")
    assert sorted(questions(rows)) == ["2+2?", "2+2?", "ok"]
    assert len(set(ids(rows))) == 3
    called = next(row for row in rows if len(row.messages) == 3)
    assert called.messages[1].tool_calls[0].function.name == "f"
    assert called.messages[1].content is None
    assert called.level == 2


def test_of_several_splits_one_has_to_be_named():
    assert len(rows_of(input_dataset=FIXTURES / "hf_splits")) == 3
    assert len(rows_of(input_dataset=FIXTURES / "hf_splits" / "test")) == 3


def test_a_folder_of_tables_and_lines_is_read_in_the_order_of_its_names(tmp_path):
    import pyarrow
    import pyarrow.parquet

    table = pyarrow.Table.from_pylist([ask("b", id="1"), ask("c", id="2")])
    pyarrow.parquet.write_table(table, tmp_path / "data-1.parquet")
    written(tmp_path / "data-0.jsonl", ask("a"))
    with pyarrow.ipc.new_file(tmp_path / "data-2.arrow", table.schema) as file:
        file.write(pyarrow.Table.from_pylist([ask("d", id="4")]))
    assert questions(rows_of(input_dataset=tmp_path)) == ["a", "b", "c", "d"]
    written(tmp_path / "train-0.jsonl", ask("t"))
    written(tmp_path / "test-0.jsonl", ask("t"))
    with pytest.raises(UsageError, match="several splits"):
        rows_of(input_dataset=tmp_path)


def test_a_table_that_is_damaged_is_named(tmp_path):
    for name in ("a.parquet", "a.arrow"):
        (tmp_path / name).write_bytes(b"nonsense nonsense")
        with pytest.raises(UsageError, match=name):
            rows_of(input_dataset=tmp_path / name)


# --- values


def test_rows_in_eval_protocols_shapes():
    message = Message(role="user", content="a")
    for shape in ([message], [[message]], [[[message]]], [[{"role": "user", "content": "a"}]]):
        assert questions(rows_of(input_messages=shape)) == ["a"]
    assert len(datasets_of(input_messages=[[[message]], [[message]]])) == 2
    row = EvaluationRow(messages=[message])
    assert questions(rows_of(input_rows=[row])) == questions(rows_of(input_rows=[[row]])) == ["a"]
    assert len(datasets_of(input_rows=[[row], [row]])) == 2


def test_rows_in_plain_shapes():
    task = Task(id="t", messages=(user("c"),))
    rows = rows_of(input_dataset=[ask("a"), "b", task, [{"role": "user", "content": "d"}]])
    assert questions(rows) == ["a", "b", "c", "d"]
    assert ids(rows)[2] == "t"


def test_generators_and_functions_of_all_kinds():
    def generate():
        yield ask("a")
        yield ask("b")

    async def stream():
        yield ask("a")
        yield ask("b")

    async def listed():
        return [ask("a"), ask("b")]

    for source in (generate, stream, listed, lambda: [ask("a"), ask("b")]):
        assert questions(rows_of(input_dataset=source)) == ["a", "b"]
        assert questions(rows_of(input_dataset=[source])) == ["a", "b"]


def test_a_generator_can_be_read_for_every_setting():
    (dataset,) = datasets_of(input_dataset=(ask(name) for name in "ab"))
    assert (
        questions(asyncio.run(dataset.rows()))
        == questions(asyncio.run(dataset.rows()))
        == ["a", "b"]
    )


def test_an_endless_generator_gives_as_many_rows_as_are_wanted():
    def endless():
        number = 0
        while True:
            yield ask(str(number))
            number += 1

    async def streaming():
        for row in endless():
            yield row

    assert questions(rows_of(input_dataset=endless, max_dataset_rows=3)) == ["0", "1", "2"]
    assert questions(rows_of(input_dataset=streaming, max_dataset_rows=2)) == ["0", "1"]


def test_what_a_reader_does_to_rows_is_nobody_elses():
    row = EvaluationRow(messages=[Message(role="user", content="a")])
    (dataset,) = datasets_of(input_rows=[row])
    asyncio.run(dataset.rows())[0].messages.clear()
    assert questions(asyncio.run(dataset.rows())) == ["a"]
    assert row.input_metadata.row_id is None


def test_what_is_no_data_set_is_told():
    with pytest.raises(UsageError, match="none was given"):
        datasets_of()
    with pytest.raises(UsageError, match="input_dataset and input_rows were given"):
        datasets_of(input_dataset="a", input_rows=[])
    with pytest.raises(UsageError, match="is not a data set"):
        rows_of(input_dataset=7)
    with pytest.raises(UsageError, match=r"row 1: \[7\] is not a row"):
        rows_of(input_dataset=[[7]])
    with pytest.raises(UsageError, match="input_dataset is empty"):
        rows_of(input_dataset=[])


def test_data_loaders_make_rows_that_say_where_they_come_from():
    def generated() -> list[EvaluationRow]:
        """Made up."""
        return [EvaluationRow(messages=[Message(role="user", content="b")])]

    inline = InlineDataLoader(messages=[[Message(role="user", content="a")]], id="mine")
    dynamic = DynamicDataLoader(generators=[generated], preprocess_fn=lambda rows: rows * 2)
    (row,) = rows_of(data_loaders=inline)
    assert row.input_metadata.dataset_info["data_loader_variant_id"] == "mine"
    rows = rows_of(data_loaders=[dynamic])
    assert questions(rows) == ["b", "b"]
    assert len(set(ids(rows))) == 2
    assert rows[1].input_metadata.dataset_info["data_loader_variant_description"] == "Made up."
    with pytest.raises(UsageError, match="rows or messages"):
        InlineDataLoader()


# --- adapters, filters and limits


def test_an_adapter_says_what_columns_mean(tmp_path):
    path = written(tmp_path / "a.jsonl", {"question": "q1"}, {"question": "q2"}, {"question": "q3"})
    seen: list[int] = []

    def adapter(raw: list[dict]) -> list[EvaluationRow]:
        seen.append(len(raw))
        return [EvaluationRow(messages=[Message(role="user", content=r["question"])]) for r in raw]

    async def slowly(raw: list[dict]) -> list[dict]:
        return [ask(item["question"]) for item in raw]

    arguments = {"input_dataset": [str(path)], "max_dataset_rows": 2}
    assert questions(rows_of(**arguments, dataset_adapter=adapter)) == ["q1", "q2"]
    assert seen == [2], "no more is adapted than is wanted"
    assert questions(rows_of(**arguments, dataset_adapter=slowly)) == ["q1", "q2"]
    assert questions(default_dataset_adapter([ask("a")])) == ["a"]


def test_rows_are_chosen_by_their_ids_given_or_not():
    rows = [ask("a", id="one"), ask("b")]
    derived = ids(rows_of(input_dataset=rows))[1]
    assert questions(rows_of(input_dataset=rows, filtered_row_ids=["one"])) == ["a"]
    assert questions(rows_of(input_dataset=rows, filtered_row_ids=[derived])) == ["b"]
    with pytest.raises(UsageError, match="no rows: none has one of the ids two"):
        rows_of(input_dataset=rows, filtered_row_ids=["two"])


def test_preprocessing_may_make_other_rows_of_them():
    talk = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b"},
        {"role": "user", "content": "c"},
        {"role": "assistant", "content": "d"},
    ]
    row = EvaluationRow(messages=talk, input_metadata=InputMetadata(row_id="r"))
    rows = rows_of(input_rows=[row], preprocess_fn=multi_turn_assistant_to_ground_truth)
    assert [(row.ground_truth, len(row.messages)) for row in rows] == [
        ("assistant: b", 1),
        ("assistant: d", 3),
    ]
    assert ids(rows) == ["r", "r-2"]
    (last,) = rows_of(input_rows=[row], preprocess_fn=assistant_to_ground_truth)
    assert (last.ground_truth, len(last.messages)) == ("assistant: d", 3)
    with pytest.raises(UsageError, match="does not end"):
        rows_of(input_dataset=[ask("a")], preprocess_fn=assistant_to_ground_truth)


def test_no_rows_are_told_with_the_reason():
    with pytest.raises(UsageError, match="the limit is 0"):
        rows_of(input_dataset=[ask("a")], max_dataset_rows=0)
    with pytest.raises(UsageError, match="-1 rows"):
        rows_of(input_dataset=[ask("a")], max_dataset_rows=-1)
    with pytest.raises(UsageError, match="no rows"):
        rows_of(input_dataset=[ask("a")], preprocess_fn=lambda rows: [])


def test_rows_that_are_only_numbers():
    assert ids(rows_of(input_rows=create_rows_from_indices(3))) == ["0", "1", "2"]


REFUSED = [
    ({"prompt": "a", "messages": [{"role": "user", "content": "b"}]}, "not both"),
    ({"prompt": 5}, "prompt is 5; it wants a text, or a list of messages"),
    ({"prompt": None}, "prompt is null; it wants a text, or a list of messages"),
    ({"prompt": "a", "id": ""}, "an id has 1 to 200 characters"),
    ({"prompt": "a", "id": "x" * 300}, "an id has 1 to 200 characters"),
    ({"prompt": "a", "id": 1.5}, "id is 1.5; it wants a text or a whole number"),
    (
        {"messages": [{"role": "user", "content": 5}]},
        "messages[0]: content is of type int (5); give a text, or a list of parts",
    ),
    (
        {"messages": [{"role": "user", "contnt": "a"}]},
        "messages[0] has no 'content'; is 'contnt' meant for it?",
    ),
    ({"messages": 5}, "messages is of type int (5); give a list of messages: [{…}, …]"),
    ({"prompt": "a", "tools": 5}, "tools is 5; it wants a list"),
    ({"prompt": "a", "input_metadata": 5}, "input_metadata is 5; it wants a JSON object"),
]


@pytest.mark.parametrize(("row", "message"), REFUSED)
def test_what_a_run_refuses_of_a_row_is_refused_in_its_words_where_it_is_read(
    tmp_path, row, message
):
    path = written(tmp_path / "a.jsonl", {"prompt": "good"}, row)
    with pytest.raises(UsageError) as caught:
        rows_of(input_dataset=path)
    assert str(caught.value).startswith(f"{path}:2: ")
    assert str(caught.value).endswith(message)
    with pytest.raises(UsageError) as caught:
        rows_of(input_dataset=[{"prompt": "good"}, row])
    assert str(caught.value).startswith("row 2: ")


NAN = float("nan")


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": "a", "ground_truth": NAN},
        EvaluationRow(messages=[Message(role="user", content="a")], ground_truth=NAN),
    ],
)
def test_a_ground_truth_that_json_does_not_have_is_refused(row):
    text = r"row 2: ground_truth is nan, a number that JSON does not have; write null, or a string"
    with pytest.raises(UsageError, match=text):
        rows_of(input_dataset=[{"prompt": "good"}, row])


def test_a_prompt_may_be_a_list_of_messages_as_in_a_run():
    (row,) = rows_of(input_dataset=[{"prompt": [{"role": "user", "content": "a"}]}])
    assert questions([row]) == ["a"]


def test_a_row_that_was_written_keeps_the_prompt_that_it_came_with():
    (row,) = rows_of(input_dataset=[ask("b", prompt="a", execution_metadata={"run_id": "r"})])
    assert questions([row]) == ["b"]
    assert row.prompt == "a"


# --- ids


def test_equal_rows_stay_distinct_and_their_ids_are_the_same_each_time():
    rows = [ask("a"), ask("b"), ask("a")]
    first, again = ids(rows_of(input_dataset=rows)), ids(rows_of(input_dataset=rows))
    assert first == again
    assert len(set(first)) == 3
    inserted = ids(rows_of(input_dataset=[ask("new"), *rows]))
    assert inserted[1:] == first, "another row renames nothing"


def test_an_id_that_is_given_twice_gets_a_number_that_is_free():
    rows = [ask("a", id="x"), ask("b", id="x"), ask("c", id="x-2"), ask("d", id="x")]
    assert ids(rows_of(input_dataset=rows)) == ["x", "x-3", "x-2", "x-4"]


def test_an_id_that_is_too_long_is_refused_by_its_row():
    from holdfast.evaluation.rows.convert import task_of

    (row,) = rows_of(input_rows=[EvaluationRow(input_metadata={"row_id": "x" * 300})])
    with pytest.raises(UsageError, match="row_id has 300 characters"):
        task_of(row)


def test_a_dataset_may_be_made_by_hand():
    assert questions(asyncio.run(Dataset(([ask("a")], ["b"])).rows())) == ["a", "b"]


def _breaks() -> Iterator[dict[str, str]]:
    yield {"prompt": "the only row that is there"}
    raise OSError("the disk is gone")


def _endless() -> Iterator[dict[str, str]]:
    while True:
        yield {"prompt": "again"}


def test_a_generator_that_broke_is_broken_for_every_setting() -> None:
    (dataset,) = datasets_of(input_dataset=_breaks())
    for _ in range(2):
        with pytest.raises(OSError, match="the disk is gone"):
            asyncio.run(dataset.rows())


def test_a_generator_without_an_end_may_be_limited(project: EvaluationProject) -> None:
    project.write(
        """
        def endless():
            while True:
                yield {"prompt": "again"}

        @evaluation_test(
            dataset=endless(), max_dataset_rows=3, rollout_processor=NoOpRolloutProcessor()
        )
        def test_it(row):
            return 1.0
        """
    )
    project.run().assert_outcomes(passed=1)
    assert project.only()["rows"] == 3
    (dataset,) = datasets_of(input_dataset=_endless(), max_dataset_rows=2)
    assert len(asyncio.run(dataset.rows())) == 2


# --- functions of the user's


def nothing(*_: object) -> None:
    return None


@pytest.mark.parametrize("argument", ["dataset_adapter", "preprocess_fn"])
def test_a_function_that_returns_no_rows_is_named(argument, tmp_path):
    path = str(written(tmp_path / "a.jsonl", ask("a")))
    with pytest.raises(UsageError) as caught:
        rows_of(input_dataset=path, **{argument: nothing})
    assert str(caught.value) == f"{argument} 'nothing' returned None; return a list of rows"
    for result in (EvaluationRow(), ask("b"), "b", 3):
        with pytest.raises(UsageError, match=r"'<lambda>' returned .*; return a list of rows"):
            rows_of(input_dataset=path, **{argument: lambda _, result=result: result})


@pytest.mark.parametrize("argument", ["dataset_adapter", "preprocess_fn"])
def test_a_function_that_cannot_take_rows_is_refused_before(argument):
    with pytest.raises(UsageError, match=rf"{argument} '<lambda>' is called with the list of"):
        datasets_of(input_dataset="none.jsonl", **{argument: lambda: [None]})
    with pytest.raises(UsageError, match=f"{argument} wants a function of the list of .*, not 'f'"):
        datasets_of(input_dataset="none.jsonl", **{argument: "f"})
    datasets_of(input_dataset="none.jsonl", **{argument: list})


def test_a_data_loader_names_what_returned_no_rows():
    with pytest.raises(UsageError, match="generator 'nothing' returned None; return a list"):
        DynamicDataLoader(generators=[nothing]).load()
    with pytest.raises(UsageError, match="preprocess_fn 'nothing' returned None; return a list"):
        InlineDataLoader(rows=[ask("a")], preprocess_fn=nothing).load()
    with pytest.raises(UsageError, match="generator '<lambda>' is called with nothing"):
        DynamicDataLoader(generators=[lambda row: [row]])


def test_an_adapter_that_raises_is_shown_without_our_frames(project: EvaluationProject):
    (project.folder / "a.jsonl").write_text('{"question": "a"}')
    project.write(
        """
        def adapter(records):
            return [{"prompt": one["quesiton"]} for one in records]

        @evaluation_test(dataset="a.jsonl", dataset_adapter=adapter)
        def test_it(row):
            return 1.0
        """
    )
    result = project.run()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*KeyError: 'quesiton'", "test_it.py:*"])
    assert "plugin.py" not in result.stdout.str()
    assert "experiment.py" not in result.stdout.str()


@pytest.mark.parametrize("as_file", [False, True])
def test_a_row_without_an_id_has_the_same_id_in_a_run_and_in_an_evaluation(
    tmp_path: Path, as_file: bool
) -> None:
    rows: list[object] = [
        {"prompt": "What is 1 + 1?", "ground_truth": 2},
        {"prompt": "What is 1 + 1?", "ground_truth": 2},
        {"prompt": [{"role": "user", "content": "x"}], "level": 3, "metadata": {"a": 1}},
        {"id": "own", "messages": [{"role": "user", "content": [{"type": "text", "text": "x"}]}]},
        {"prompt": "x", "extra_info": {"index": 1}, "reward_model": {"ground_truth": "5"}},
    ]
    file = tmp_path / "rows.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    tasks = read_tasks(file if as_file else rows)
    listed = rows_of(input_dataset=str(file)) if as_file else rows_of(input_rows=rows)
    assert ids(listed) == [task.id for task in tasks]
    assert [row.ground_truth for row in listed] == [task.ground_truth for task in tasks]
    assert ids(listed)[1] == f"{ids(listed)[0]}-2"
