"""What is wrong with an engine's address, key or dialect is said before a run is recorded."""

import json
import urllib.request

import pytest

from holdfast.records.exit_codes import Exit
from holdfast.testing import FakeEngine
from support.cli.shell import CommandLine

GATEWAY = ("gateway", "--tasks", "tasks.jsonl", "--run", "r")


@pytest.mark.parametrize(
    ("engine_is", "named", "looks_like"),
    [
        ("vllm", "sglang", "vllm"),
        ("vllm", "vllm-generate", "vllm"),
        ("vllm-scale-out", "sglang", "vllm-generate"),
        ("sglang", "chat", "sglang"),
        ("chat", "vllm", "chat"),
    ],
)
def test_a_dialect_that_the_engine_does_not_speak_is_refused_before_the_run(
    tmp_path, engine_is, named, looks_like
):
    with FakeEngine(dialect=engine_is) as engine:
        shell = CommandLine(tmp_path, engine)
        policy = ("--policy", engine.url, "--model", engine.model)
        for arguments in (
            shell.arguments(),
            (*GATEWAY, *policy),
            ("policy", "check", engine.url, "--model", engine.model),
        ):
            done = shell.holdfast(*arguments, "--dialect", named)
            assert (done.code, done.out) == (Exit.USAGE, ""), arguments
            assert done.err == (
                f"holdfast: {engine.url} does not speak {named}; it looks like {looks_like} "
                "(leave --dialect out to have it found)\n"
            )
        assert not shell.journal.exists()
        assert engine.stats().requests == 0


def test_a_dialect_that_is_spoken_is_taken_and_looking_for_it_samples_nothing(shell):
    shell.finished_run("--dialect", "vllm")
    assert shell.engine.stats().requests == 4, "two tasks × two turns"


def test_an_engine_that_gives_nothing_is_told_its_reason_once_and_is_fit_for_nothing(shell):
    arguments = ("policy", "check", shell.engine.url, "--dialect", "fireworks")
    done = shell.holdfast(*arguments)
    assert done.code == Exit.FAILURES
    head, reason, verdict = done.out.splitlines()
    assert "dialect fireworks" in head
    assert reason.startswith(f"  nothing could be sampled: {shell.engine.url} answered 400: ")
    assert verdict == "fit for training: no, nor for evaluation"
    data = json.loads(shell.holdfast(*arguments, "--json").out)
    assert (data["fit_for_training"], data["fit_for_evaluation"]) == (False, False)
    assert all(finding["failed"] for finding in data["findings"])


def test_an_engine_that_was_left_paused_is_said_to_be(tmp_path):
    with FakeEngine(dialect="vllm-scale-out") as engine:
        urllib.request.urlopen(f"{engine.url}/pause?mode=keep", data=b"", timeout=60).close()
        shell = CommandLine(tmp_path, engine)
        done = shell.holdfast("policy", "check", engine.url)
        assert done.code == Exit.STOPPED
        assert done.line.startswith(f"holdfast: {engine.url} is paused: ")
        assert "POST /resume" in done.line
        urllib.request.urlopen(f"{engine.url}/resume", data=b"", timeout=60).close()
        assert "is paused" not in shell.holdfast("policy", "check", engine.url).err


def test_an_engine_whose_update_did_not_end_is_not_fit_for_training(tmp_path):
    with FakeEngine(dialect="vllm-scale-out", version="unfinished-update") as engine:
        done = CommandLine(tmp_path, engine).holdfast("policy", "check", engine.url)
    assert done.code == Exit.FAILURES
    assert "no  weight versions" in done.out
    assert "may be half loaded" in done.out


def test_an_engine_without_tokens_is_still_fit_for_evaluation(shell):
    arguments = ("policy", "check", shell.engine.url, "--dialect", "chat")
    done = shell.holdfast(*arguments)
    assert done.code == Exit.FAILURES
    assert done.out.splitlines()[-1] == "fit for training: no, for evaluation only"
    assert json.loads(shell.holdfast(*arguments, "--json").out)["fit_for_evaluation"]


@pytest.mark.parametrize("path", ["/v1", "/v1/", "/"])
def test_an_address_is_taken_with_what_clients_of_openai_put_behind_it(shell, path):
    shell.finished_run(policy=shell.engine.url + path)


def test_an_address_with_more_behind_it_is_refused_and_says_what_to_leave_out(shell):
    done = shell.run(policy=f"{shell.engine.url}/v1/v1")
    assert done.code == Exit.USAGE
    assert (
        "its API is looked for at /v1/v1: give the address of what comes before /models"
        in done.line
    )
    assert not shell.journal.exists()


def test_https_for_an_engine_that_speaks_http_is_refused_with_the_address_to_give(shell):
    done = shell.run(policy=shell.engine.url.replace("http:", "https:"))
    assert done.code == Exit.USAGE
    assert done.line.endswith(
        f"speaks plain http, not https; give the address as {shell.engine.url}"
    )


def test_an_engine_that_is_down_is_told_without_the_words_of_the_http_client(shell):
    done = shell.run("--patience", 0, policy="http://127.0.0.1:9")
    assert done.code == Exit.STOPPED
    assert "127.0.0.1:9" in done.line
    assert "ssl" not in done.line


def test_a_providers_model_wants_its_key_by_name(shell: CommandLine) -> None:
    env = {"OPENAI_API_KEY": "", "ANTHROPIC_API_KEY": ""}
    arguments = ["run", "agent.py", "--tasks", "tasks.jsonl", "--run", "x"]
    for option in ("--policy", "--model"):
        done = shell.holdfast(*arguments, option, "openai/gpt-4o-mini", env=env)
        assert (done.code, "set OPENAI_API_KEY" in done.line) == (Exit.USAGE, True)
    done = shell.holdfast(*arguments, "--policy", "anthropic/claude", "--model", "x", env=env)
    assert "leave --model out" in done.line
    assert not shell.journal.exists()
