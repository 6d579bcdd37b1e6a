"""A call with which a framework tries its model is no turn of the trajectory."""

from collections.abc import Sequence

import aiohttp
import pytest

from holdfast.gateway.agents.subprocess import BlackBoxRolloutProcessor
from support.engine.local_run import LocalRun
from support.gateway.external_agents import post
from support.rollout.stage import Oracle

PROBE, TASK = "Please say hello", "Now do a, please"
"""The task of a `LocalRun` says "do a"."""


def replying(request) -> str:
    text = bytes(token for token in request.prompt if token < 256).decode()
    return "hello, world" if PROBE in text.rsplit("user\n", 1)[-1] else "done with it"


def made(*conversations: Sequence[str], fails_once: bool = False) -> LocalRun:
    """A finished trajectory whose agent made these calls: texts of users and assistants, by turns.
    With `fails_once`, its first attempt dies after its first call."""
    attempts = []

    async def agent(binding, task):
        attempts.append(task)
        async with aiohttp.ClientSession() as http:
            for conversation in conversations:
                roles = ("user", "assistant") * len(conversation)
                messages = [
                    {"role": role, "content": text}
                    for role, text in zip(roles, conversation, strict=False)
                ]
                body = {"model": "m", "messages": messages}
                status, reply = await post(http, f"{binding.bound_url}/v1/chat/completions", body)
                assert status == 200, reply
                if fails_once and len(attempts) == 1:
                    raise ConnectionError("the agent lost its way")

    local = LocalRun(policy=Oracle(replying))
    local.run(BlackBoxRolloutProcessor(agent))
    assert local.history().status.name == "COMPLETED", local.history().failures
    return local


def replies(local: LocalRun) -> list[str]:
    return [step.message.text for step in local.history().generations]


@pytest.mark.parametrize("fails_once", [False, True], ids=["calm", "killed"])
def test_a_probe_is_no_turn_and_no_sample(fails_once: bool) -> None:
    local = made([PROBE], [TASK], fails_once=fails_once)
    assert replies(local) == ["done with it"]
    (sample,) = local.rows()
    assert sum(sample["loss_mask"]) == local.history().sampled_tokens
    assert len(local.policy.requests) == 2, "the probe is answered from the record"


def test_what_a_probe_used_is_counted() -> None:
    alone, beside = made([TASK]).history(), made([PROBE], [TASK]).history()
    (used,), (more,) = alone.used.values(), beside.used.values()
    assert more.completion_tokens > used.completion_tokens


@pytest.mark.parametrize(
    "calls",
    [
        ([PROBE], [PROBE, "hello, world", TASK]),
        ([PROBE], [f"It said: hello, world. {TASK}"]),
        ([PROBE], ["something else"]),
        ([TASK], [PROBE]),
        ([PROBE],),
    ],
    ids=["continued", "quoted", "no call has the task", "after the task", "alone"],
)
def test_a_call_that_may_have_played_a_part_is_a_turn(calls: tuple[list[str], ...]) -> None:
    local = made(*calls)
    assert len(replies(local)) == len(calls)


def test_a_finished_trajectory_is_read_without_the_calls_of_its_probes() -> None:
    calls = made([PROBE], [TASK]).history().calls.values()
    assert [call.path for call in calls] == ["1.0.0"]
