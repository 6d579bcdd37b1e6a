"""`holdfast export --what atif|inspect`: traces in files and folders that other tools open."""

import json
import zipfile

import pytest

from holdfast.records.exit_codes import Exit
from support.cli.shell import CommandLine


@pytest.fixture(scope="module")
def ran(module_engine, tmp_path_factory):
    shell = CommandLine(tmp_path_factory.mktemp("traces"), module_engine)
    shell.tasks("sum", "bug", "a/b")
    shell.finished_run("--samples", 2)
    return shell


def export(ran, what, out, *extra):
    return ran.holdfast("export", "r", "--what", what, "--out", out, *extra)


def test_a_folder_gets_one_document_for_each_trajectory(ran):
    done = export(ran, "atif", "traces/")
    assert done.code == Exit.OK, done.err
    files = sorted(path.name for path in (ran.place / "traces").iterdir())
    assert files == sorted(f"{task}-{n}.json" for task in ("a%2Fb", "bug", "sum") for n in (0, 1))
    document = json.loads((ran.place / "traces/sum-1.json").read_bytes())
    assert document["trajectory_id"] == "r/sum/1"
    assert export(ran, "atif", "traces/").code == Exit.OK


def test_a_document_that_would_change_is_kept_without_force(ran):
    assert export(ran, "atif", "kept/").code == Exit.OK
    (ran.place / "kept/sum-0.json").write_text("mine")
    refused = export(ran, "atif", "kept/")
    assert refused.code == Exit.USAGE
    assert "kept/sum-0.json is there with other content" in refused.err
    assert (ran.place / "kept/sum-0.json").read_text() == "mine"
    assert export(ran, "atif", "kept/", "--force").code == Exit.OK


def test_lines_hold_the_same_documents(ran):
    assert export(ran, "atif", "traces.jsonl").code == Exit.OK
    lines = (ran.place / "traces.jsonl").read_bytes().splitlines()
    assert export(ran, "atif", "single/").code == Exit.OK
    assert sorted(lines) == sorted(path.read_bytes() for path in (ran.place / "single").iterdir())


def test_a_log_of_inspect_has_its_name_in_a_folder_and_ours_beside(ran):
    assert export(ran, "inspect", "logs/").code == Exit.OK
    assert export(ran, "inspect", "mine.eval").code == Exit.OK
    (log,) = (ran.place / "logs").iterdir()
    assert log.read_bytes() == (ran.place / "mine.eval").read_bytes()
    assert export(ran, "inspect", "logs/").code == Exit.OK
    with zipfile.ZipFile(log) as archive:
        assert "samples/sum_epoch_2.json" in archive.namelist()


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("inspect", "log.json"), "--what inspect writes an .eval file"),
        (("inspect", "-"), "--what inspect writes an .eval file"),
        (("atif", "traces.txt"), "--what atif writes a folder or a .jsonl file"),
        (("atif", "t.jsonl", "--format", "csv"), "has one format of its own"),
        (("rows", "there/"), "'there' cannot be written: it is not a regular file"),
    ],
)
def test_what_a_place_cannot_hold_is_refused(ran, words, reason):
    (ran.place / "there").mkdir(exist_ok=True)
    refused = export(ran, *words)
    assert refused.code == Exit.USAGE
    assert reason in refused.err
