"""A call with which a framework tries its model is no turn of the trajectory."""

from collections.abc import Sequence

import aiohttp
import pytest

from holdfast.gateway.agents.subprocess import BlackBoxRolloutProcessor
from support.engine.yard import Yard
from support.gateway.external_agents import post
from support.rollout.stage import Oracle

PROBE, TASK = "Please say hello", "Now do a, please"
"""The task of a `Yard` says "do a"."""


def replying(request) -> str:
    text = bytes(token for token in request.prompt if token < 256).decode()
    return "hello, world" if PROBE in text.rsplit("user\n", 1)[-1] else "done with it"


def made(*conversations: Sequence[str], fails_once: bool = False) -> Yard:
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
                status, told = await post(http, f"{binding.bound_url}/v1/chat/completions", body)
                assert status == 200, told
                if fails_once and len(attempts) == 1:
                    raise ConnectionError("the agent lost its way")

    yard = Yard(policy=Oracle(replying))
    yard.run(BlackBoxRolloutProcessor(agent))
    assert yard.history().status.name == "COMPLETED", yard.history().failures
    return yard


def replies(yard: Yard) -> list[str]:
    return [step.message.text for step in yard.history().generations]


@pytest.mark.parametrize("fails_once", [False, True], ids=["calm", "killed"])
def test_a_probe_is_no_turn_and_no_sample(fails_once: bool) -> None:
    yard = made([PROBE], [TASK], fails_once=fails_once)
    assert replies(yard) == ["done with it"]
    (sample,) = yard.rows()
    assert sum(sample["loss_mask"]) == yard.history().sampled_tokens
    assert len(yard.policy.requests) == 2, "the probe is answered from the record"


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
    yard = made(*calls)
    assert len(replies(yard)) == len(calls)


def test_a_finished_trajectory_is_read_without_the_calls_of_its_probes() -> None:
    calls = made([PROBE], [TASK]).history().calls.values()
    assert [call.path for call in calls] == ["1.0.0"]
