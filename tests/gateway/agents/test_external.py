"""Agents that others start: they take trajectories, are resumed by replay, and complete them."""

import asyncio

import pytest

from holdfast.gateway.agents.external import Address, ExternalRolloutProcessor
from holdfast.gateway.assignment.routes import _query as parse_request
from holdfast.gateway.http.request import RequestContext
from holdfast.gateway.protocol.messages import MAX_NAME_CHARS, RequestRejected
from holdfast.records.encoding.redaction import hide
from holdfast.records.errors import UsageError
from support.engine.local_run import LocalRun
from support.gateway.external_agents import ask, converse, post, with_agents
from support.rollout.stage import Oracle


def test_agents_take_trajectories_and_complete_them():
    local = LocalRun("a", "b", samples=2)

    async def worker(http, url):
        done = []
        for _ in range(2):
            status, taken = await post(http, f"{url}/trajectories", {"wait": 10})
            assert status == 200, taken
            await converse(http, taken)
            status, reply = await post(http, f"{taken['bound_url']}/complete", {"reward": 0.5})
            assert (status, reply["reward"]) == (200, 0.5)
            done.append(taken["trajectory"])
        return done

    async def agents(http, url):
        return await asyncio.gather(worker(http, url), worker(http, url))

    first, second = with_agents(local, agents)
    assert sorted([*first, *second]) == ["run/a/0", "run/a/1", "run/b/0", "run/b/1"]
    for history in local.histories().values():
        assert (history.status.name, history.reward) == ("COMPLETED", 0.5)
        assert len(history.generations) == 2


def test_an_agent_that_comes_again_is_given_back_its_past_and_the_old_key_is_refused():
    local = LocalRun()

    async def agents(http, url):
        _, taken = await post(http, f"{url}/trajectories", {"task": "a", "sample": 0, "wait": 10})
        before = await converse(http, taken)
        status, again = await post(http, f"{url}/trajectories", {"task": "a", "sample": 0})
        assert status == 200, again
        assert again["key"] != taken["key"]
        status, refused = await ask(http, taken, {"role": "user", "content": "do a"})
        assert status == 409, refused
        assert (await converse(http, again, 3))[:2] == before
        await post(http, f"{again['bound_url']}/complete", {})

    with_agents(local, agents)
    history = local.history()
    assert history.status.name == "COMPLETED"
    assert len(local.policy.requests) == 3
    assert not history.failures


def test_of_several_agents_that_want_the_same_next_attempt_one_gets_it_and_no_other_waits():
    local = LocalRun("a", samples=1)

    async def agents(http, url):
        _, taken = await post(http, f"{url}/trajectories", {"task": "a", "wait": 10})
        before = await converse(http, taken)
        wanted = {"task": "a", "sample": 0, "wait": 0}
        # All of them have asked before any is answered: the attempt that they replace is busy.
        answers = [asyncio.create_task(post(http, f"{url}/trajectories", wanted)) for _ in range(5)]
        done, _ = await asyncio.wait(answers, timeout=30)
        statuses = sorted(task.result()[0] for task in done)
        assert statuses == [200, 409, 409, 409, 409]
        lost = [task.result()[1]["error"] for task in done if task.result()[0] == 409]
        assert {error["code"] for error in lost} == {"taken"}
        again = next(task.result()[1] for task in done if task.result()[0] == 200)
        assert await converse(http, again) == before
        status, _ = await post(http, f"{again['bound_url']}/complete", {"reward": 1})
        assert status == 200

    with_agents(local, agents)


def test_who_wants_the_next_attempt_of_one_that_completes_meanwhile_is_refused_at_once():
    local = LocalRun("a", "b", samples=1)

    async def agents(http, url):
        _, kept = await post(http, f"{url}/trajectories", {"task": "b", "wait": 10})
        _, taken = await post(http, f"{url}/trajectories", {"task": "a", "wait": 10})
        await converse(http, taken)
        complete = asyncio.create_task(post(http, f"{taken['bound_url']}/complete", {"reward": 1}))
        wanted = asyncio.create_task(post(http, f"{url}/trajectories", {"task": "a"}))
        done, _ = await asyncio.wait((complete, wanted), timeout=30)
        assert done == {complete, wanted}
        if wanted.result()[0] == 200:  # It was faster, and the other one was replaced.
            assert complete.result()[0] == 409
            await post(http, f"{wanted.result()[1]['bound_url']}/complete", {"reward": 1})
        else:
            assert wanted.result()[0] == 404
        await post(http, f"{kept['bound_url']}/complete", {"reward": 1})

    with_agents(local, agents)


def test_an_answer_that_a_lost_agent_waited_for_is_given_to_the_one_that_takes_its_place():
    event, answer = asyncio.Event(), asyncio.Event()

    async def slowly(request):
        event.set()
        await answer.wait()
        return "at last"

    local = LocalRun(policy=Oracle(slowly))

    async def agents(http, url):
        _, taken = await post(http, f"{url}/trajectories", {"wait": 10})
        message = {"role": "user", "content": "do a"}
        waiting = asyncio.create_task(ask(http, taken, message))
        await event.wait()
        waiting.cancel()  # Its connection is closed.
        coming = asyncio.create_task(post(http, f"{url}/trajectories", {"task": "a", "wait": 10}))
        status = 0
        while status != 409:
            # Until the key of the lost one is refused, the takeover has not begun.
            status, _ = await post(http, f"{taken['bound_url']}/tools/none", {})
        answer.set()
        status, again = await coming
        assert status == 200, again
        status, text = await ask(http, again, message)
        assert (status, text["choices"][0]["message"]["content"]) == (200, "at last")
        await post(http, f"{again['bound_url']}/complete", {})

    with_agents(local, agents)
    assert len(local.policy.requests) == 1
    assert not local.history().failures


def test_a_trajectory_that_nobody_knows_or_that_is_not_open_is_refused():
    local = LocalRun()

    async def agents(http, url):
        status, taken = await post(http, f"{url}/trajectories", {"wait": 10})
        assert status == 200
        assert (await post(http, f"{url}/trajectories", {}))[0] == 404
        assert (await post(http, f"{url}/trajectories", {"task": "x"}))[0] == 404
        assert (await post(http, f"{url}/trajectories", {"tusk": "x"}))[0] == 400
        status, reply = await post(http, f"{url}/trajectories", {"sample": 1})
        assert (status, reply["error"]["param"]) == (400, "task")
        await post(http, f"{taken['bound_url']}/complete", {"reward": 1})

    with_agents(local, agents)
    assert local.history().reward == 1.0


def test_a_secret_that_lies_across_the_end_of_a_quoted_name_is_hidden_whole():
    local = LocalRun()
    secret = "a-s3cret-of-this-process"
    hide(secret)

    async def agents(http, url):
        _, taken = await post(http, f"{url}/trajectories", {"wait": 10})
        named = "x" * (MAX_NAME_CHARS - 8) + secret
        status, reply = await post(http, f"{url}/trajectories", {"task": named})
        assert status == 404
        assert secret[:8] not in reply["error"]["message"]
        await post(http, f"{taken['bound_url']}/complete", {"reward": 1})

    with_agents(local, agents)


def test_a_silent_agent_is_given_up_and_another_goes_on():
    local = LocalRun()

    async def agents(http, url):
        _, taken = await post(http, f"{url}/trajectories", {"wait": 10})
        before = await converse(http, taken, 1)
        status, again = await post(http, f"{url}/trajectories", {"wait": 20})
        assert status == 200, again
        assert again["attempt"] == 2
        assert await converse(http, again, 1) == before
        await post(http, f"{again['bound_url']}/complete", {"reward": 1})

    with_agents(local, agents, silence=2.0)
    history = local.history()
    assert [failure.type for failure in history.failures] == ["AgentSilent"]
    assert len(local.policy.requests) == 1


@pytest.mark.parametrize("max_retry", [0, 1])
def test_an_agent_that_asked_nothing_and_has_no_reward_is_not_told_that_it_completed(max_retry):
    local = LocalRun()

    async def agents(http, url):
        for _ in range(max_retry + 1):
            _, taken = await post(http, f"{url}/trajectories", {"task": "a", "wait": 20})
            status, reply = await post(http, f"{taken['bound_url']}/complete", {})
            assert (status, reply["error"]["code"]) == (409, "attempt_over")
            assert "without having asked" in reply["error"]["message"]

    with_agents(local, agents, max_retry=max_retry)
    assert local.history().status.name == "FAILED"


def test_takers_have_to_know_the_token():
    local, token = LocalRun(), "a-token-of-some-length"

    async def agents(http, url):
        assert (await post(http, f"{url}/trajectories", {"wait": 5}))[0] == 401
        bearer = {"Authorization": f"Bearer {token}"}
        status, taken = await post(http, f"{url}/trajectories", {"wait": 5}, **bearer)
        assert status == 200
        await post(http, f"{taken['bound_url']}/complete", {"reward": 1})

    with_agents(local, agents, address=Address(token=token))
    assert local.history().reward == 1.0


@pytest.mark.parametrize("silence", [0, -1])
def test_silence_takes_time(silence):

    with pytest.raises(UsageError, match="more than 0 seconds"):
        ExternalRolloutProcessor(silence=silence)


class NoText:
    """A request whose body is not UTF-8."""

    parse = RequestContext.parse

    async def body(self) -> bytes:
        return b'{"\xff": 1}'


def test_who_asks_for_a_trajectory_in_no_text_is_refused():
    with pytest.raises(RequestRejected, match="it wants"):
        asyncio.run(parse_request(NoText()))
