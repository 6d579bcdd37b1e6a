"""`--out` replaces an earlier export where no row of it is lost, and nothing else."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.records.exit_codes import Exit
from support.cli.shell import CommandLine

KINDS = (
    "samples",
    "rows",
    "trajectories",
    "failures",
    "verl",
    "slime",
    "trl",
    "nemo",
    "tinker",
    "sft",
)


@pytest.fixture(scope="module")
def ran(module_engine, tmp_path_factory):
    shell = CommandLine(tmp_path_factory.mktemp("output"), module_engine)
    shell.tasks("sum", "bug")
    shell.finished_run("--samples", 2, "--max-retry", 0, "--group-refill", 0)
    return shell


def out(shell: CommandLine, name: str, *arguments: object, what: str = "samples"):
    if name.endswith(".html"):
        return shell.holdfast("report", "r", "--out", name, *arguments)
    return shell.holdfast("export", "r", "--what", what, "--out", name, *arguments)


@pytest.mark.parametrize(
    ("what", "name"),
    [*((kind, f"{kind}.jsonl") for kind in KINDS), ("rows", "r.parquet"), ("sft", "s.parquet")],
)
def test_an_earlier_export_of_the_same_kind_is_replaced(ran, what, name):
    assert out(ran, name, what=what).code == Exit.OK
    before = (ran.place / name).read_bytes()
    assert out(ran, name, what=what).code == Exit.OK
    assert before
    assert (ran.place / name).read_bytes() == before


def test_other_earlier_files_of_ours_are_replaced(ran):
    for name, what in (("s.csv", "samples"), ("t.csv", "trajectories"), ("r.html", "")):
        assert out(ran, name, what=what).code == Exit.OK
        assert out(ran, name, what=what).code == Exit.OK


@pytest.mark.parametrize("name", ["notes.txt", "data.jsonl", "data.csv", "page.html", "x.parquet"])
def test_what_somebody_else_wrote_is_replaced_by_force_alone(ran, name):
    text = {
        "data.jsonl": json.dumps({"task": "a", "sample": 0, "messages": []}),
        "data.csv": "task,sample,reward\na,0,1\n",
        "page.html": "<!doctype html><title>My results</title>",
        "x.parquet": "PAR1 and then nothing of the kind",
    }.get(name, "remember the milk")
    file = ran.write(name, text)
    refused = out(ran, name)
    assert refused.code == Exit.USAGE
    assert "--force" in refused.line
    assert file.read_text() == text
    assert out(ran, name, "--force").code == Exit.OK
    assert file.read_text(errors="replace") != text


@pytest.mark.parametrize(
    ("first", "then"),
    [
        ("samples", "rows"),
        ("samples", "sft"),
        ("trajectories", "sft"),
        ("samples", "trajectories"),
        ("trajectories", "samples"),
        ("failures", "trajectories"),
    ],
)
@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
def test_an_export_of_another_kind_is_not_replaced(ran, first, then, ending):
    name = f"{first}-{then}.{ending}"
    assert out(ran, name, what=first).code == Exit.OK
    before = (ran.place / name).read_bytes()
    refused = out(ran, name, what=then)
    assert refused.code == Exit.USAGE
    assert f"with rows or columns that this export of {then} does not have" in refused.line
    assert (ran.place / name).read_bytes() == before
    assert not list(ran.place.glob(".holdfast-*")), "nothing is left of the new one"


def add_a_key(file: Path) -> None:
    rows = [json.loads(line) | {"mine": 1} for line in file.read_text().splitlines()]
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def add_a_line(file: Path) -> None:
    with file.open("a") as lines:
        lines.write("mine\n")


def add_a_column(file: Path) -> None:
    import pyarrow.parquet as pq

    table = pq.read_table(file)
    pq.write_table(table.append_column("mine", [[1] * len(table)]), file)


def change_a_cell(file: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pq.read_table(file)
    rewards = pa.array([7.0] * len(table), table.schema.field("reward").type)
    place = table.schema.get_field_index("reward")
    pq.write_table(table.set_column(place, table.schema.field("reward"), rewards), file)


@pytest.mark.parametrize(
    ("name", "edit"),
    [
        ("key.jsonl", add_a_key),
        ("line.jsonl", add_a_line),
        ("line.csv", add_a_line),
        ("column.parquet", add_a_column),
        ("cell.parquet", change_a_cell),
    ],
)
def test_an_export_with_work_of_the_users_in_it_is_replaced_by_force_alone(
    ran, name: str, edit: Callable[[Path], None]
):
    file = ran.place / name
    assert out(ran, name).code == Exit.OK
    edit(file)
    edited = file.read_bytes()
    refused = out(ran, name)
    assert (refused.code, file.read_bytes()) == (Exit.USAGE, edited)
    assert "--force" in refused.line
    assert out(ran, name, "--force").code == Exit.OK
    assert file.read_bytes() != edited


@pytest.mark.parametrize("ending", ["jsonl", "csv", "parquet"])
def test_an_export_of_fewer_rows_is_replaced_where_the_run_has_gone_on(ran, ending):
    name = f"grown.{ending}"
    ran.tasks("sum", file="fewer.jsonl")
    ran.finished_run(run=ending, tasks="fewer.jsonl")
    assert ran.holdfast("export", ending, "--what", "samples", "--out", name).code == Exit.OK
    before = (ran.place / name).read_bytes()
    ran.tasks("sum", "product", file="fewer.jsonl")
    ran.finished_run("--accept-changes", run=ending, tasks="fewer.jsonl")
    assert ran.holdfast("export", ending, "--what", "samples", "--out", name).code == Exit.OK
    assert (ran.place / name).read_bytes() != before
    ran.tasks("product", file="fewer.jsonl")
    ran.finished_run("--accept-changes", run=ending, tasks="fewer.jsonl")
    refused = ran.holdfast("export", ending, "--what", "samples", "--out", name)
    assert refused.code == Exit.USAGE, "a row would be lost"


@pytest.mark.parametrize("name", ["agent.py", "tasks.jsonl", "holdfast.toml"])
def test_what_the_run_was_made_with_is_never_replaced(ran, name):
    (ran.place / "holdfast.toml").write_text("[run]\nconcurrency = 4\n")
    before = (ran.place / name).read_bytes()
    for arguments in ((), ("--force",)):
        refused = out(ran, name, *arguments)
        assert refused.code == Exit.USAGE
        assert "never written over" in refused.line
    report = ran.holdfast("report", "r", "--out", name, "--force")
    assert report.code == Exit.USAGE
    assert (ran.place / name).read_bytes() == before


def test_a_link_to_the_runs_code_and_its_model_folder_are_spared_too(ran):
    (ran.place / "link.jsonl").symlink_to("agent.py")
    assert "never written over" in out(ran, "link.jsonl", "--force").line
    folder = ran.place / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    ran.finished_run("--tokenizer", "model", "--renderer", "bytes", run="folder")
    refused = ran.holdfast(
        "export", "folder", "--what", "samples", "--out", "model/config.json", "--force"
    )
    assert "never written over" in refused.line


def test_an_empty_file_is_nothing_to_lose(ran):
    ran.write("empty.jsonl", "")
    assert out(ran, "empty.jsonl").code == Exit.OK


def test_a_report_under_the_name_of_another_format_is_refused(ran: CommandLine) -> None:
    refused = ran.holdfast("report", "r", "--out", "r.pdf")
    assert refused.code == Exit.USAGE
    assert "name it r.html" in refused.line
    assert not (ran.place / "r.pdf").exists()
    assert ran.holdfast("report", "r", "--out", "r.HTM").code == 0
