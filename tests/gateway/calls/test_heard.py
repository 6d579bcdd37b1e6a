"""After a restart of the gateway, an agent that asks the same again gets another sample, unless its
last answer may have been lost."""

import json
import signal
import socket

import pytest

from holdfast.testing import FakeEngine, Fault, FaultKind
from support.gateway.outpost import Agent, Outpost, until

BODY = {"model": "m", "messages": [{"role": "user", "content": "Say a number."}]}


@pytest.fixture
def engine(request):
    replies = ("one of {n}", "two of {n}", "three of {n}")
    with FakeEngine(replies=replies, faults=getattr(request, "param", ())) as engine:
        yield engine


@pytest.fixture
def outpost(tmp_path, engine):
    outpost = Outpost(tmp_path, engine, tasks=("a",))
    outpost.start()
    yield outpost
    outpost.close()


def taken(outpost: Outpost) -> dict:
    return Agent(outpost).insist(f"{outpost.url}/trajectories", {"wait": 20})


def restart(outpost: Outpost) -> None:
    outpost.signal(signal.SIGKILL)
    outpost.ended()
    outpost.start()


def ask(outpost: Outpost, given: dict) -> str:
    url = f"{given['openai_base_url']}/chat/completions"
    return Agent(outpost).insist(url, BODY, given["key"])["id"]


def heard(outpost: Outpost) -> int:
    (history,) = outpost.histories().values()
    return sum(called.heard > 0 for called in history.calls.values())


def test_an_answer_that_was_received_is_not_given_again_after_a_restart(outpost, engine):
    given = taken(outpost)
    answers = [ask(outpost, given) for _ in range(2)]
    until(lambda: heard(outpost) == 2)
    restart(outpost)
    answers += [ask(outpost, given)]
    until(lambda: heard(outpost) == 3)
    restart(outpost)
    answers += [ask(outpost, given)]
    assert len(set(answers)) == 4
    assert engine.stats().completions == 4


@pytest.mark.parametrize("engine", [(Fault(FaultKind.HOLD, matching="/1.0.0"),)], indirect=True)
def test_an_answer_that_may_be_lost_is_given_again_after_a_restart(outpost, engine):
    given = taken(outpost)
    first = ask(outpost, given)
    until(lambda: heard(outpost) == 1)
    # The client leaves before the answer: it becomes durable, and nobody has it.
    body = json.dumps(BODY).encode()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n"
        f"Content-Type: application/json\r\nAuthorization: Bearer {given['key']}\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", outpost.port)) as connection:
        connection.sendall(head.encode() + body)
        until(lambda: engine.stats().held == 1)
    engine.release()
    until(lambda: len(outpost.durable()) == 2)
    restart(outpost)
    assert ask(outpost, given) != first
    assert engine.stats().completions == 2


def test_a_new_agent_hears_everything_from_the_first_on(outpost, engine):
    given = taken(outpost)
    answers = [ask(outpost, given) for _ in range(2)]
    until(lambda: heard(outpost) == 2)
    restart(outpost)
    url = f"{outpost.url}/trajectories"
    given = Agent(outpost).insist(url, {"task": "a", "sample": 0, "wait": 20})
    assert [ask(outpost, given) for _ in range(2)] == answers
    assert engine.stats().completions == 2
