"""After a restart of the gateway, an agent that asks the same again gets another sample, unless its
last answer may have been lost."""

import json
import signal
import socket

import pytest

from holdfast.testing import FakeEngine, Fault, FaultKind
from support.gateway.gateway_process import Agent, GatewayProcess, until

BODY = {"model": "m", "messages": [{"role": "user", "content": "Say a number."}]}


@pytest.fixture
def engine(request):
    replies = ("one of {n}", "two of {n}", "three of {n}")
    with FakeEngine(replies=replies, faults=getattr(request, "param", ())) as engine:
        yield engine


@pytest.fixture
def gateway(tmp_path, engine):
    gateway = GatewayProcess(tmp_path, engine, tasks=("a",))
    gateway.start()
    yield gateway
    gateway.close()


def taken(gateway: GatewayProcess) -> dict:
    return Agent(gateway).insist(f"{gateway.url}/trajectories", {"wait": 20})


def restart(gateway: GatewayProcess) -> None:
    gateway.signal(signal.SIGKILL)
    gateway.ended()
    gateway.start()


def ask(gateway: GatewayProcess, trajectory: dict) -> str:
    url = f"{trajectory['openai_base_url']}/chat/completions"
    return Agent(gateway).insist(url, BODY, trajectory["key"])["id"]


def received_answers(gateway: GatewayProcess) -> int:
    (history,) = gateway.histories().values()
    return sum(called.received > 0 for called in history.calls.values())


def test_an_answer_that_was_received_is_not_given_again_after_a_restart(gateway, engine):
    trajectory = taken(gateway)
    answers = [ask(gateway, trajectory) for _ in range(2)]
    until(lambda: received_answers(gateway) == 2)
    restart(gateway)
    answers += [ask(gateway, trajectory)]
    until(lambda: received_answers(gateway) == 3)
    restart(gateway)
    answers += [ask(gateway, trajectory)]
    assert len(set(answers)) == 4
    assert engine.stats().completions == 4


@pytest.mark.parametrize("engine", [(Fault(FaultKind.HOLD, matching="/1.0.0"),)], indirect=True)
def test_an_answer_that_may_be_lost_is_given_again_after_a_restart(gateway, engine):
    trajectory = taken(gateway)
    first = ask(gateway, trajectory)
    until(lambda: received_answers(gateway) == 1)
    # The client leaves before the answer: it becomes durable, and nobody has it.
    body = json.dumps(BODY).encode()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n"
        f"Content-Type: application/json\r\nAuthorization: Bearer {trajectory['key']}\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", gateway.port)) as connection:
        connection.sendall(head.encode() + body)
        until(lambda: engine.stats().held == 1)
    engine.release()
    until(lambda: len(gateway.durable()) == 2)
    restart(gateway)
    assert ask(gateway, trajectory) != first
    assert engine.stats().completions == 2


def test_a_new_agent_hears_everything_from_the_first_on(gateway, engine):
    trajectory = taken(gateway)
    answers = [ask(gateway, trajectory) for _ in range(2)]
    until(lambda: received_answers(gateway) == 2)
    restart(gateway)
    url = f"{gateway.url}/trajectories"
    trajectory = Agent(gateway).insist(url, {"task": "a", "sample": 0, "wait": 20})
    assert [ask(gateway, trajectory) for _ in range(2)] == answers
    assert engine.stats().completions == 2
