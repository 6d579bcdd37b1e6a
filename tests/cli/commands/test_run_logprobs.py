"""Logprobs of another distribution than the one that was sampled from: told, marked, refused."""

import asyncio
import json

import pyarrow.parquet as pq
import pytest

import holdfast
from holdfast.records.errors import NotTrainable, UsageError
from holdfast.records.exit_codes import Exit
from holdfast.testing import FakeEngine
from support.cli.shell import CommandLine

FLAG = "--logprobs-mode processed_logprobs"
WARM = ("--temperature", 0.8)


@pytest.fixture(scope="module")
def raw_engine():
    """A vLLM of default options."""
    with FakeEngine(mean_length=10, logprobs_mode="raw") as engine:
        yield engine


@pytest.fixture(scope="module")
def raw(raw_engine, tmp_path_factory):
    shell = CommandLine(tmp_path_factory.mktemp("raw"), raw_engine)
    shell.warnings = shell.finished_run(*WARM).err
    return shell


def samples(shell, *extra):
    return [json.loads(line) for line in shell.export("samples", *extra).splitlines()]


def test_a_run_says_it_before_anything_is_sampled(raw):
    first = raw.warnings.splitlines()[0]
    assert "are raw: at temperature 0.8" in first
    assert FLAG in first


def test_samples_are_refused_with_the_flag_that_mends_it(raw):
    done = raw.holdfast("export", "r", "--what", "samples", "--out", "refused.jsonl")
    assert done.code == Exit.USAGE
    assert "its logprobs are raw, and it was sampled at temperature 0.8" in done.line
    assert FLAG in done.line
    assert "--logprobs raw" in done.line
    assert not (raw.place / "refused.jsonl").exists()


def test_asked_for_by_name_they_are_exported_as_what_they_are(raw):
    assert {item["logprobs_mode"] for item in samples(raw, "--logprobs", "raw")} == {"raw"}
    done = raw.holdfast(
        "export", "r", "--what", "samples", "--logprobs", "raw", "--out", "s.parquet"
    )
    assert done.code == 0
    assert "2 raw" in done.line
    table = pq.read_table(raw.place / "s.parquet")
    assert set(table.column("logprobs_mode").to_pylist()) == {"raw"}


def test_rows_and_trajectories_are_exported_and_marked(raw):
    done = raw.holdfast("export", "r", "--what", "rows", "--out", "rows.jsonl")
    assert done.code == 0
    assert "raw" in done.line
    for line in (raw.place / "rows.jsonl").read_text().splitlines():
        assert json.loads(line)["execution_metadata"]["extra"]["logprobs_mode"] == ["raw"]
    for line in raw.export("trajectories").splitlines():
        assert {turn["logprobs_mode"] for turn in json.loads(line)["turns"]} == {"raw"}


def test_from_python_it_is_the_same(raw):
    async def samples_of(**more):
        return [item async for item in holdfast.samples(raw.journal, "r", **more)]

    with pytest.raises(NotTrainable, match=FLAG):
        asyncio.run(samples_of())
    assert {argument.logprobs_mode for argument in asyncio.run(samples_of(logprobs="raw"))} == {
        "raw"
    }
    with pytest.raises(UsageError, match="'cooked'"):
        asyncio.run(samples_of(logprobs="cooked"))


@pytest.mark.parametrize("mode", ["raw", "processed"])
def test_at_temperature_1_uncut_there_is_no_difference(mode, tmp_path):
    with FakeEngine(mean_length=10, logprobs_mode=mode) as engine:
        shell = CommandLine(tmp_path, engine)
        assert "logprobs" not in shell.finished_run().err
        assert {item["logprobs_mode"] for item in samples(shell)} == {"processed"}


@pytest.mark.parametrize("how", [WARM, ("--top-p", 0.9)])
def test_an_engine_that_processes_its_logprobs_is_fit_for_any_sampling(shell, how):
    assert "logprobs" not in shell.finished_run(*how).err
    assert {item["logprobs_mode"] for item in samples(shell)} == {"processed"}


def test_a_cut_distribution_needs_them_too(tmp_path):
    with FakeEngine(mean_length=10, logprobs_mode="tempered", dialect="sglang") as engine:
        shell = CommandLine(tmp_path, engine)
        shell.finished_run(*WARM)
        assert {item["logprobs_mode"] for item in samples(shell)} == {"processed"}
        shell.finished_run("--new", "--top-p", 0.9)
        done = shell.holdfast("export", "r-2", "--what", "samples", "--out", "refused.jsonl")
        assert done.code == Exit.USAGE
        assert "sample uncut" in done.line


def test_greedy_replies_have_none_of_their_own(shell):
    assert "logprobs" not in shell.finished_run("--temperature", 0).err
    done = shell.holdfast("export", "r", "--what", "samples", "--out", "refused.jsonl")
    assert done.code == Exit.USAGE
    assert "sample at temperature 1" in done.line


def test_the_option_is_for_samples_and_what_is_made_of_them(raw):
    done = raw.holdfast("export", "r", "--what", "rows", "--logprobs", "raw", "--out", "x")
    assert done.code == Exit.USAGE
    assert done.line.startswith("holdfast: --logprobs goes with --what samples or ")


def test_an_engine_with_raw_ones_is_not_said_to_be_fit_for_training(raw):
    done = raw.holdfast("policy", "check", raw.engine.url)
    assert done.code == Exit.FAILURES
    assert "no  logprobs" in done.out
    verdict = done.out.splitlines()[-1]
    assert verdict.startswith("fit for training: no, because of its logprobs: ")
    assert FLAG in verdict
