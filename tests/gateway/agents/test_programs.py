"""Agents as people write them: one token-exact tree for each, whatever dies on the way."""

from functools import cache

import pytest

from holdfast.gateway.agents.subprocess import BlackBoxRolloutProcessor
from support.engine.local_run import LocalRun
from support.gateway import warm_agents
from support.gateway.agents import TURNS, adding, assert_each_token_is_trained_once, exported
from support.rollout.stage import Oracle

EXTENDING = {
    "openai": ("openai_loop",),
    "openai-stream": ("openai_loop", "--stream"),
    "anthropic": ("anthropic_loop",),
    "anthropic-stream": ("anthropic_loop", "--stream"),
    "responses": ("responses_loop",),
    "responses-stream": ("responses_loop", "--stream"),
    "curl": ("curl_loop",),
    "urllib": ("curl_loop", "--urllib"),
    "urllib-stream": ("curl_loop", "--stream"),
    "retrying": ("retrying_loop",),
}
QUICK = ("curl", "urllib", "urllib-stream")
"""Programs that start in no time are killed at every call, also in the fast part."""


def chatting(request) -> str:
    return f"words {request.seed % 100_000}"


def played(arguments: tuple[str, ...], answer, **env: str) -> LocalRun:
    local = LocalRun(policy=Oracle(answer))
    name, *args = arguments
    local.run(BlackBoxRolloutProcessor(warm_agents.command(name, *args), env=env))
    history = local.history()
    assert history.status.name == "COMPLETED", history.failures
    return local


@cache
def undisturbed(arguments: tuple[str, ...], answer) -> LocalRun:
    return played(arguments, answer)


@pytest.mark.parametrize("program", EXTENDING)
def test_an_agent_that_extends_its_conversation_gives_one_sample(program):
    local = undisturbed(EXTENDING[program], adding)
    history = local.history()
    assert len(history.generations) == len(local.policy.requests) == TURNS
    assert history.prefix_breaks == 0
    assert not history.forks
    assert_each_token_is_trained_once(local, samples=1)
    assert [step.base for step in history.generations] == ["", "0.0.0", "1.0.0", "2.0.0"]


def kill_and_compare(tmp_path, arguments, answer, *, count, phase="before") -> None:
    calm = undisturbed(arguments, answer)
    flag = tmp_path / f"{phase}-{count}"
    crash = {"CRASH_AT": str(count), "CRASH_ONCE": str(flag), "CRASH_PHASE": phase}
    local = played(arguments, answer, **crash)
    assert flag.exists(), "it was killed"
    assert len(local.policy.requests) == len(calm.policy.requests)
    history = local.history()
    assert not history.forks
    assert ["signal 9" in failure.message for failure in history.failures] == [True]
    assert exported(local) == exported(calm)


@pytest.mark.parametrize("program", QUICK)
@pytest.mark.parametrize("phase", ["before", "stream", "after"])
def test_an_agent_killed_at_each_of_its_calls_is_given_back_its_past(tmp_path, program, phase):
    if phase == "stream" and not program.endswith("-stream"):
        pytest.skip("nothing is streamed")
    for count in range(TURNS):
        kill_and_compare(tmp_path, EXTENDING[program], adding, count=count, phase=phase)


@pytest.mark.parametrize("program", ["anthropic-stream", "responses", "openai-stream"])
def test_an_agent_on_a_library_killed_in_mid_conversation_is_given_back_its_past(tmp_path, program):
    stream = "stream" if program.endswith("-stream") else "before"
    kill_and_compare(tmp_path, EXTENDING[program], adding, count=2, phase=stream)


@pytest.mark.exhaustive
@pytest.mark.parametrize("program", EXTENDING)
@pytest.mark.parametrize("count", range(TURNS))
def test_any_agent_killed_at_each_point_of_each_call_is_given_back_its_past(
    tmp_path, program, count
):
    phases = ("before", "stream", "after") if program.endswith("-stream") else ("before", "after")
    for phase in phases:
        kill_and_compare(tmp_path, EXTENDING[program], adding, count=count, phase=phase)


# --- trees

PARALLEL = ("parallel_agents",)
COMPACTING = ("compacting_loop",)


def test_identical_prompts_and_sub_agents_at_once_are_branches_of_their_own():
    local = undisturbed(PARALLEL, chatting)
    history = local.history()
    # Three drafts, two sub-agents of two turns, one judge.
    assert len(history.generations) == len(local.policy.requests) == 8
    assert history.prefix_breaks == 0
    assert_each_token_is_trained_once(local, samples=6)
    assert len({step.message.text for step in history.generations}) == 8


def test_a_parallel_agent_that_is_killed_keeps_every_branch(tmp_path):
    kill_and_compare(tmp_path, PARALLEL, chatting, count=2)


@pytest.mark.exhaustive
@pytest.mark.parametrize("count", range(4))
def test_a_parallel_agent_killed_at_each_of_its_stages_keeps_every_branch(tmp_path, count):
    kill_and_compare(tmp_path, PARALLEL, chatting, count=count)


def test_an_agent_that_edits_its_history_each_turn_breaks_off_visibly():
    local = undisturbed(COMPACTING, chatting)
    history = local.history()
    assert len(history.generations) == len(local.policy.requests) == 4
    breaks = [step.prefix_break for step in history.generations]
    assert breaks == ["", *["earlier messages were changed"] * 3]
    assert_each_token_is_trained_once(local, samples=4)


@pytest.mark.parametrize("count", range(TURNS))
def test_an_agent_that_edits_its_history_is_given_back_its_past_as_well(tmp_path, count):
    kill_and_compare(tmp_path, COMPACTING, chatting, count=count)


# --- clients that ask again


def test_an_agent_that_gives_up_waiting_and_asks_again_is_sampled_once():
    import asyncio

    tries: list[str] = []

    async def slow(request) -> str:
        tries.append(request.id)
        if len(tries) in (2, 4):
            await asyncio.sleep(1.0)
        return adding(request)

    arguments, patience = EXTENDING["retrying"], {"GIVE_UP_AT": "1,3", "GIVE_UP_SECONDS": "0.3"}
    local = played(arguments, slow, **patience)
    assert len(tries) == TURNS
    assert exported(local) == exported(undisturbed(arguments, adding))
