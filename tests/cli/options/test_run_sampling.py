"""The options of sampling: sent to the engine, part of the run's identity, refused in one line."""

import json

import pytest

from holdfast.records.exit_codes import Exit
from holdfast.testing import FakeEngine
from support.cli.shell import CommandLine

ASKING = """
async def solve(t):
    t.add(*t.task.messages)
    await t.generate(max_tokens=12)
"""
OPTIONS = (
    "--top-k", 5, "--min-p", 0.25, "--presence-penalty", -0.5, "--repetition-penalty", 1.5,
    "--logit-bias", "7=-100", "--logit-bias", "9=1.5", "--stop-token-ids", "3,4",
    "--extra-body", '{"cache_salt": "x"}',
)  # fmt: skip


def test_all_of_them_reach_the_engine_and_make_another_run(shell) -> None:
    shell.write("agent.py", ASKING)
    shell.finished_run(*OPTIONS)
    sent = shell.engine.calls()[-1].parameters
    assert sent == sent | {
        "top_k": 5,
        "min_p": 0.25,
        "presence_penalty": -0.5,
        "repetition_penalty": 1.5,
        "logit_bias": {"7": -100.0, "9": 1.5},
        "cache_salt": "x",
    }
    assert sent["stop_token_ids"][-2:] == [3, 4]
    shell.finished_run(*OPTIONS)  # The same command goes on.
    done = shell.run(*OPTIONS, "--min-p", 0.5)
    assert done.code == Exit.CHANGED
    assert "sampling.min_p: recorded 0.25, now 0.5" in done.err
    (first, *_) = [json.loads(line) for line in shell.export().splitlines()]
    assert [turn[5] for turn in first["turns"]] == [True], "samples say that it was altered"


def test_arguments_of_a_template_go_to_an_engine_that_takes_messages(tmp_path) -> None:
    with FakeEngine(dialect="chat") as engine:
        shell = CommandLine(tmp_path, engine)
        shell.write("agent.py", ASKING)
        shell.finished_run("--chat-template-kwargs", '{"enable_thinking": false}', "--ignore-eos")
        sent = engine.calls()[-1].parameters
    assert sent["chat_template_kwargs"] == {"enable_thinking": False}
    assert sent["ignore_eos"] is True


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--chat-template-kwargs", '{"a": 1}'), "the renderer 'bytes' has no chat template"),
        (("--extra-body", '{"temperature": 1}'), "give temperature itself, and not in extra_body"),
        (("--extra-body", '{"return_token_ids": false}'), "extra_body.return_token_ids: "),
        (("--min-p", "2"), "argument --min-p: must be 0 to 1, not 2"),
        (("--top-k", "-1"), "argument --top-k: must be 0 or more, not -1"),
        (("--presence-penalty", "3"), "argument --presence-penalty: must be -2 to 2, not 3"),
        (("--repetition-penalty", "0"), "argument --repetition-penalty: must be above 0, not 0"),
        (("--logit-bias", "5"), "argument --logit-bias: wants TOKEN=BIAS, like 42=-100, not '5'"),
        (("--logit-bias", "5=1000"), "argument --logit-bias: must be -100 to 100, not 1000"),
        (("--logit-bias", "5=1", "--logit-bias", "5=2"), "logit_bias names a token twice"),
        (("--stop-token-ids", "1,b"), "argument --stop-token-ids: wants the id of a token"),
        (("--extra-body", "[1]"), "argument --extra-body: wants a JSON object"),
        (("--chat-template-kwargs", "{a"), "argument --chat-template-kwargs: is not JSON"),
    ],
    ids=str,
)
def test_what_makes_no_sense_is_refused_before_anything_is_done(shell, arguments, message) -> None:
    done = shell.run(*arguments)
    assert done.code == Exit.USAGE
    assert message in done.line
    assert shell.engine.stats().requests == 0
    assert not shell.journal.exists()


def test_what_the_engine_lacks_is_refused_before_anything_is_recorded(tmp_path) -> None:
    with FakeEngine(dialect="fireworks") as engine:
        shell = CommandLine(tmp_path, engine)
        done = shell.run("--stop-token-ids", 3)
        assert done.code == Exit.USAGE
        assert "ends no reply at token ids (stop_token_ids)" in done.line
        assert not shell.journal.exists()
