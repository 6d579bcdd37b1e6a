"""Runs of agent programs, and what is exported of them."""

import json

from support.engine.local_run import LocalRun

CALL = '<tool_call>{{"name": "add", "arguments": {{"a": {}, "b": 2}}}}</tool_call>'
TURNS = 4


def adding(request) -> str:
    """Asks for the tool three times, with some words, and is then done."""
    turn = bytes(token for token in request.prompt if token < 256).count(b"assistant\n")
    return "that is all" if turn >= TURNS else f"I add {turn} " + CALL.format(turn)


def exported(local: LocalRun) -> list[str]:
    """The samples, however branches that ran side by side were numbered."""
    rows = [{name: row[name] for name in row if name != "branch"} for row in local.rows()]
    return sorted(json.dumps(row, default=str) for row in rows)


def assert_each_token_is_trained_once(local: LocalRun, samples: int) -> None:
    rows = local.rows()
    assert len(rows) == samples
    assert sum(sum(row["loss_mask"]) for row in rows) == local.history().sampled_tokens
