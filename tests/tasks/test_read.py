"""Tasks from anywhere: the same tasks from each kind of source, and each mistake is one line."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from openai.types.chat import ChatCompletionMessage

import holdfast
from holdfast.records.errors import UsageError
from holdfast.records.message import Message, user
from holdfast.records.task import Task, as_tasks
from holdfast.rollout.code.load import UserCodeError
from holdfast.tasks.read import load_tasks, read_tasks

ROWS = [
    {"id": "a", "prompt": "1 + 1?", "ground_truth": "2", "level": "easy"},
    {"id": "b", "prompt": "2, or\n3?", "ground_truth": "3", "level": "hard"},
]
EXPECTED = as_tasks(ROWS)
TALK = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "Hi"}]


def table():
    import pyarrow

    return pyarrow.Table.from_pylist(ROWS)


def write_jsonl(folder: Path) -> Path:
    path = folder / "tasks.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in ROWS))
    return path


def write_json(folder: Path) -> Path:
    path = folder / "tasks.json"
    path.write_text(json.dumps(ROWS))
    return path


def write_csv(folder: Path) -> Path:
    path = folder / "tasks.csv"
    path.write_text('id,prompt,ground_truth,level\na,1 + 1?,2,easy\nb,"2, or\n3?",3,hard\n')
    return path


def write_semicolons(folder: Path) -> Path:
    path = folder / "tasks.csv"
    path.write_bytes(
        b"\xef\xbb\xbfid;prompt;ground_truth;level\r\n"
        b'a;1 + 1?;2;easy\r\n\r\nb;"2, or\n3?";3;hard\r\n'
    )
    return path


def write_tsv(folder: Path) -> Path:
    path = folder / "tasks.tsv"
    path.write_text('id\tprompt\tground_truth\tlevel\na\t1 + 1?\t2\teasy\nb\t"2, or\n3?"\t3\thard')
    return path


def write_parquet(folder: Path) -> Path:
    import pyarrow.parquet

    pyarrow.parquet.write_table(table(), folder / "tasks.parquet")
    return folder / "tasks.parquet"


def write_function(folder: Path) -> str:
    path = folder / "made.py"
    path.write_text(f"ROWS = {ROWS!r}\n\ndef make():\n    return ROWS\n")
    return f"{path}:make"


def write_generator(folder: Path) -> str:
    path = folder / "generated.py"
    path.write_text(f"def tasks():\n    yield from {ROWS!r}\n")
    return str(path)


def write_async_generator(folder: Path) -> str:
    path = folder / "streamed.py"
    path.write_text(f"async def tasks():\n    for row in {ROWS!r}:\n        yield row\n")
    return f"{path}:tasks"


def write_coroutine_of_a_path(folder: Path) -> str:
    path = folder / "found.py"
    path.write_text(f"async def where():\n    return {str(write_jsonl(folder))!r}\n")
    return f"{path}:where"


@pytest.mark.parametrize(
    "write",
    [
        write_jsonl,
        write_json,
        write_csv,
        write_semicolons,
        write_tsv,
        write_parquet,
        write_function,
        write_generator,
        write_async_generator,
        write_coroutine_of_a_path,
    ],
)
def test_the_same_tasks_from_every_kind_of_file(tmp_path, write):
    source = write(tmp_path)
    assert read_tasks(source) == EXPECTED
    assert read_tasks(str(source), limit=1) == EXPECTED[:1]


def test_the_same_tasks_from_values_of_python():
    async def streamed():
        for row in ROWS:
            yield row

    async def returned():
        return ROWS

    for source in (
        ROWS,
        tuple(ROWS),
        iter(ROWS),
        lambda: ROWS,
        streamed,
        streamed(),
        returned,
        EXPECTED,
        table(),
        table().to_pandas(),
    ):
        assert read_tasks(source) == EXPECTED


def test_a_data_set_of_hugging_face_as_a_value_a_folder_and_by_name(tmp_path):
    import datasets

    result = datasets.Dataset.from_list(ROWS)
    assert read_tasks(result) == EXPECTED
    result.save_to_disk(tmp_path / "saved")
    assert read_tasks(tmp_path / "saved") == EXPECTED
    both = datasets.DatasetDict(train=result, test=result.select([1]))
    with pytest.raises(UsageError, match=r"\(train, test\); name one, as in tasks=data\['train'"):
        read_tasks(both)
    assert read_tasks(datasets.DatasetDict(train=result)) == EXPECTED
    (tmp_path / "named").mkdir()
    result.to_json(tmp_path / "named" / "train.jsonl")
    assert read_tasks(f"hf:{tmp_path / 'named'}:train") == EXPECTED
    result.to_json(tmp_path / "named" / "test.jsonl")
    with pytest.raises(UsageError, match=r"several splits \(train, test\); name one, as in hf:.*:"):
        read_tasks(f"hf:{tmp_path / 'named'}")
    with pytest.raises(UsageError, match=r"cannot be loaded: .*nope"):
        read_tasks(f"hf:{tmp_path / 'named'}:nope")


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("hf:", "names no data set; write hf:NAME"),
        ("hf:a/b/c/d", "names no data set"),
        ("hf:a:", "names no data set"),
        ("hf:./nowhere", "folder ./nowhere does not exist"),
    ],
)
def test_a_name_that_is_none_is_refused(name, why):
    with pytest.raises(UsageError, match=why):
        read_tasks(name)


def test_a_name_on_the_hub_without_a_network_says_what_to_do():
    code = "import holdfast; holdfast.read_tasks('hf:openai/gsm8k/main:test')"
    ended = subprocess.run(
        [sys.executable, "-c", code],
        env={"HF_HUB_OFFLINE": "1", "PATH": "", "HOME": "/nonexistent", "HF_HOME": "/tmp/none"},
        capture_output=True,
        text=True,
        check=False,
    )
    last = ended.stderr.strip().splitlines()[-1]
    assert "UsageError: hf:openai/gsm8k/main:test cannot be loaded" in last
    assert "save_to_disk" in last


async def test_inside_a_running_loop():
    assert read_tasks(ROWS) == EXPECTED
    assert (await load_tasks(lambda: ROWS)) == EXPECTED


def test_prompts_conversations_and_files_in_one_list(tmp_path):
    tasks = read_tasks(["What?", TALK, {"prompt": TALK}, write_jsonl(tmp_path), EXPECTED[0].id])
    assert [task.messages[-1].text for task in tasks] == [
        "What?",
        "Hi",
        "Hi",
        "1 + 1?",
        "2, or\n3?",
        "a",
    ]
    assert read_tasks(TALK)[0].messages == (Message("system", "Be short."), user("Hi"))


def test_columns_say_which_is_which(tmp_path):
    path = tmp_path / "gsm.csv"
    path.write_text("question,answer,id\n1 + 1?,2,x\n")
    (task,) = read_tasks(path, columns={"prompt": "question", "ground_truth": "answer"})
    assert task == Task("x", (user("1 + 1?"),), ground_truth="2", prompt_is_text=True)
    for columns, why in (
        ({"prompt": "quest"}, "gsm.csv:2 has no column 'quest'; it has question, answer, id"),
        ({"question": "prompt"}, "no field 'question' .*the field comes first: prompt=question"),
        ({"prompt": 1}, "prompt names a column by a text, not 1"),
        ("question", "columns is a dict like"),
    ):
        with pytest.raises(UsageError, match=why):
            read_tasks(path, columns=columns)  # type: ignore[arg-type]


def test_an_empty_cell_is_a_value_that_is_missing_and_no_missing_column(tmp_path):
    import pandas

    path = tmp_path / "gsm.csv"
    path.write_text("question,answer\n1 + 1?,\n")
    frame = pandas.DataFrame({"question": ["1 + 1?"], "answer": [None]})
    columns = {"prompt": "question", "ground_truth": "answer"}
    for source in (path, frame):
        (task,) = read_tasks(source, columns=columns)
        assert (task.messages, task.ground_truth) == ((user("1 + 1?"),), None)
        with pytest.raises(UsageError, match="no column 'answers'; it has question, answer"):
            read_tasks(source, columns={"ground_truth": "answers"})
        with pytest.raises(UsageError, match="column 'answer' is empty; write a prompt there"):
            read_tasks(source, columns={"prompt": "answer"})


def test_nested_columns_and_missing_values_of_tables(tmp_path):
    import pandas

    frame = pandas.DataFrame(
        {"messages": [TALK, TALK], "n": [1.5, None], "at": pandas.to_datetime(["2026-01-01", None])}
    )
    frame.to_parquet(tmp_path / "nested.parquet")
    for source in (frame, tmp_path / "nested.parquet"):
        first, two = read_tasks(source)
        assert [message.text for message in first.messages] == ["Be short.", "Hi"]
        assert first.metadata["n"] == 1.5
        assert str(first.metadata["at"]).startswith("2026-01-01T00:00:00")
        assert two.metadata == {}
    path = tmp_path / "texts.csv"
    path.write_text('messages,n\n"[{""role"": ""user"", ""content"": ""Hi""}]",\n')
    assert read_tasks(path)[0] == as_tasks([[TALK[1]]])[0]


# --- mistakes


def mistake(tmp_path: Path, name: str, data: bytes | str) -> str:
    path = tmp_path / name
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    with pytest.raises(UsageError) as caught:
        read_tasks(path)
    assert "\n" not in str(caught.value)
    return str(caught.value).removeprefix(f"{tmp_path}/")


@pytest.mark.parametrize(
    ("name", "data", "why"),
    [
        ("t.jsonl", "", "t.jsonl has no tasks; a task file has one JSON object per line"),
        ("t.csv", "", "has no tasks"),
        ("t.csv", "prompt\n", "has no tasks"),
        ("t.json", "[]", "has no tasks"),
        ("t.json", "[1]", "t.json, item 1: wants a JSON object, found int"),
        ("t.json", '[{"prompt": "a",}]', "t.json: not JSON: "),
        ("t.jsonl", "{'prompt': 'a'}", "t.jsonl:1: not JSON"),
        ("t.jsonl", '[{"prompt": "a"}]', r"found list; a file with one list .* ends in \.json"),
        ("t.jsonl", '[\n{"prompt": "a"}\n]', r"one list of tasks ends in \.json"),
        ("t.jsonl", '{\n  "prompt": "a"\n}\n', r"jsonl:1: not JSON.* one line, .* ends in \.json"),
        ("t.txt", "What is 1 + 1?", "t.txt:1: not JSON: .*other kinds of files end in .jsonl"),
        (
            "t.jsonl",
            '{"question": "a", "answer": 1}',
            "say which is the prompt, --columns prompt=question",
        ),
        ("t.jsonl", '{"role": "user", "content": "a"}', "it is a message: a conversation is"),
        (
            "t.jsonl",
            '{"messages": {"role": "user"}}',
            "t.jsonl:1: messages is .*; it wants a list of",
        ),
        ("t.jsonl", '{"messages": ["hi", 3]}', r"messages\[1\] is of type int \(3\)"),
        ("t.jsonl", '{"messages": [{"content": "a"}]}', r"messages\[0\] has no 'role'"),
        ("t.jsonl", '{"messages": [{"role": "user", "contnt": "a"}]}', "is 'contnt' meant for it"),
        (
            "t.jsonl",
            '{"messages": [{"role": "user", "content": 3}]}',
            r"messages\[0\]: content is of type int \(3\); give a text",
        ),
        (
            "t.jsonl",
            '{"messages": [{"role": "user", "content": ["a"]}]}',
            r"content\[0\] is of type str \('a'\); a part is a dict",
        ),
        (
            "t.jsonl",
            '{"messages": [{"role": "assistant", "tool_calls": [{"id": "1"}]}]}',
            r"tool_calls\[0\]: .*function.*; a call is \{",
        ),
        ("t.csv", "1 + 1?,2\n3,4\n", "needs 'messages' .* it has '1 \\+ 1\\?', '2'"),
        ("t.csv", "prompt,prompt\na,b\n", "t.csv:1: column 'prompt' is there 2 times"),
        ("t.csv", "prompt,,x\na,b,c\n", "t.csv:1: column 2 has no name"),
        ("t.csv", "prompt,x\na\n", "t.csv:2: 1 cells, but the first line names 2 columns"),
        ("t.csv", "prompt,x\na,b,c\n", "t.csv:2: 3 cells, but the first line names 2 columns"),
        ("t.csv", "prompt\n" + "x" * 200_000, "t.csv:2: a cell has more than 131,072 characters"),
        ("t.csv", 'prompt\na\n"b\nc\nd\n', "t.csv:3: a cell opens a quote that is never closed"),
        ("t.csv", 'prompt\n"b" c\n', "t.csv:2: not CSV: .*; write a quote in a text twice"),
        ("t.csv", "prompt,x\n,b\n", "t.csv:2: column 'prompt' is empty"),
        ("t.csv", b"prompt\ncaf\xe9\n", "t.csv:2: byte 0xe9 is not UTF-8; save the file as UTF-8"),
        ("t.csv", "prompt\na\n".encode("utf-16"), "t.csv is UTF-16; save it as UTF-8"),
        ("t.jsonl", b'{"prompt": "caf\xe9"}\n', "t.jsonl:1: byte 0xe9 is not UTF-8; save the file"),
        ("t.json", b'[\n{"prompt": "caf\xe9"}]', "t.json:2: byte 0xe9 is not UTF-8; save the file"),
        ("t.jsonl", '{"prompt": "a"}'.encode("utf-16"), "t.jsonl:1 is UTF-16; save it as UTF-8"),
        ("t.csv", "id,prompt,answer\nx,,5\n", "t.csv:2: column 'prompt' is empty; write a prompt"),
        ("t.csv", "messages\nhello\n", "messages is a text, 'hello'; write a JSON list"),
        ("t.csv", 'messages\n"[1,"\n', "t.csv:2: messages: not JSON"),
        ("t.csv", "id,prompt\na,x\na,y\n", "task id 'a' is used 2 times, in lines 2, 3"),
        ("t.json", '[{"id": 1, "prompt": "x"}, {"id": 1, "prompt": "y"}]', "in rows 1, 2; give"),
        ("t.parquet", "nonsense", "t.parquet cannot be read"),
    ],
)
def test_a_mistake_in_a_file_is_one_line_that_names_it(tmp_path, name, data, why):
    import re

    error = mistake(tmp_path, name, data)
    assert re.search(why, error), error


@pytest.mark.parametrize(
    ("code", "reference", "why"),
    [
        ("def make(n): ...", "make", "is called without arguments to make tasks: missing a"),
        ("def make(): ...", "made", "has no 'made' to make tasks; its functions: make"),
        ("def make(): ...", "", "has no 'tasks' to make tasks; its functions: make"),
        ("def make(): ...", "make", "make returned None: let it return a list of tasks, or yield"),
        ("def make(): return []", "make", "has no tasks"),
        ("def make(): return 3", "make", r"3 \(of type int\) is not a task file"),
        ("def make(): return [3]", "make", r"task 1 is of type int \(3\); give a dict"),
        ("def make(): return {'prompt': 'a'}", "make", r"one task, not a list of tasks"),
        ("def make(): return 'no.jsonl'", "make", r"no.jsonl does not exist \(.*returned it\)"),
        ("def make(): return {1, 2}", "make", "a set has no order"),
    ],
)
def test_a_function_that_makes_no_tasks_is_refused(tmp_path, code, reference, why):
    path = tmp_path / f"m{abs(hash((code, reference)))}.py"
    path.write_text(code)
    with pytest.raises(UsageError, match=why) as caught:
        read_tasks(f"{path}:{reference}" if reference else str(path))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("prefix", ["", "async "])
@pytest.mark.parametrize("before", ["", "yield {'prompt': 'a'}; "])
def test_what_such_a_function_raises_is_shown_with_its_own_traceback(tmp_path, prefix, before):
    path = tmp_path / f"raises_{len(prefix)}_{len(before)}.py"
    path.write_text(f"{prefix}def make():\n    {before}raise ValueError('no rows')\n")
    with pytest.raises(UserCodeError, match="raised ValueError: no rows") as caught:
        read_tasks(f"{path}:make")
    assert "in make" in caught.value.traceback
    assert "sources.py" not in caught.value.traceback


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("nowhere.jsonl", "task file nowhere.jsonl does not exist"),
        ("nowhere.py:make", r"nowhere.py does not exist"),
        ("What is 1 + 1?", r'a prompt is one of a list, tasks=\["…"\]'),
        (lambda n: [], "is called without arguments to make tasks: missing a required argument"),
        (["nowhere.jsonl"], "task file nowhere.jsonl does not exist"),
        ([], "tasks is empty; give one task or more"),
        ({"prompt": "a"}, "tasks is one task, not a list of tasks"),
        (Task("a"), "tasks is one task, not a list of tasks"),
        (None, r"None \(of type NoneType\) is not a list of tasks"),
        (b"x", "is not a list of tasks"),
        ([None], r"task 1 is of type NoneType \(None\)"),
        ({"a", "b"}, "a set has no order"),
    ],
)
def test_what_is_no_source_is_refused(source, why):
    with pytest.raises(UsageError, match=why):
        read_tasks(source)


def test_a_misspelled_file_is_told_with_the_one_that_is_there(tmp_path):
    write_jsonl(tmp_path)
    with pytest.raises(UsageError, match=r"does not exist; is .*tasks\.jsonl meant\?"):
        read_tasks(tmp_path / "task.jsonl")


@pytest.mark.parametrize(("limit", "why"), [(0, "1 or more, not 0"), ("2", "whole number")])
def test_a_limit_is_a_whole_number(limit, why):
    with pytest.raises(UsageError, match=f"limit must be .*{why}"):
        read_tasks(ROWS, limit=limit)


def test_it_is_public():
    assert holdfast.read_tasks is read_tasks


@pytest.mark.parametrize(
    ("columns", "why"),
    [
        ({"prmpt": "prompt"}, "no field 'prmpt' .*; is 'prompt' meant"),
        ({"question": "prompt"}, "the field comes first: prompt=question"),
    ],
)
def test_a_column_that_is_misspelt_is_not_taken_for_one_that_is_turned_round(columns, why):
    with pytest.raises(UsageError, match=why):
        read_tasks([{"prompt": "x"}], columns=columns)


def test_rows_inside_of_one_row_are_said_to_be_rows(tmp_path):
    file = tmp_path / "tasks.jsonl"
    file.write_text('{"data": [{"prompt": "x"}]}\n')
    with pytest.raises(UsageError, match="its 'data' is a list of rows"):
        read_tasks(file)


def test_messages_of_other_libraries_are_taken_in_rows():
    reply = ChatCompletionMessage.model_validate(
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
            ],
        }
    )
    message = {"role": "user", "content": "hi"}
    (dumped,) = read_tasks(
        [{"id": "a", "messages": [message, reply.model_dump(exclude_none=True)]}]
    )
    for field in ("messages", "prompt"):
        assert read_tasks([{"id": "a", field: [message, reply]}]) == [dumped]
    with pytest.raises(UsageError, match="task 1: Encoding objects of type object is unsupported"):
        read_tasks([{"id": "a", "messages": [object()]}])


def test_rows_of_a_file_are_parsed_one_by_one(tmp_path):
    """A list of all rows as they are in the file would take more memory than the tasks."""
    path = tmp_path / "tasks.jsonl"
    path.write_text('{"prompt": 5}\nnot JSON\n')
    with pytest.raises(UsageError, match=r"tasks\.jsonl:1: prompt is 5"):
        read_tasks(path)
