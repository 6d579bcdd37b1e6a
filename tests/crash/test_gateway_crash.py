"""SIGKILL of `holdfast gateway`, which is gateway and driver at once, while agents of somebody
else's speak to it. They live on and ask again with the keys that they have; the same command is
started again. Nothing that was told is lost or sampled twice, and the tree is that of a run which
nobody disturbed."""

import os
import signal
import threading

import pytest

from holdfast.journal.damage.check import check
from holdfast.testing import FakeEngine, Fault, FaultKind
from support.gateway.gateway_process import (
    REPLIES,
    SIGKILLED,
    TURNS,
    Agent,
    GatewayProcess,
    until,
    work,
)

TASKS = ("a", "b")
BACK_SOON = ("--rejoin", 5)
"""An attempt whose key was not told when the gateway died waits for nobody."""
FAST_POINTS = 2
CALLS = len(TASKS) * TURNS


@pytest.fixture(scope="module")
def shared_engine():
    with FakeEngine(replies=REPLIES) as engine:
        yield engine


@pytest.fixture
def engine(shared_engine):
    shared_engine.reset()
    shared_engine.set_faults()
    return shared_engine


@pytest.fixture(scope="module")
def calm(shared_engine, tmp_path_factory):
    """What an undisturbed run exports, and how many records it has."""
    shared_engine.reset()
    shared_engine.set_faults()
    gateway = GatewayProcess(tmp_path_factory.mktemp("calm"), shared_engine, tasks=TASKS)
    try:
        gateway.start()
        assert work(gateway, *agents_of(gateway)) == 0, gateway.output
    finally:
        gateway.close()
    assert len(shared_engine.requests()) == CALLS
    return gateway.samples(), check(gateway.journal).records


@pytest.fixture
def gateway(tmp_path, engine):
    result = GatewayProcess(tmp_path, engine, *BACK_SOON, tasks=TASKS)
    yield result
    result.close()


def agents_of(gateway: GatewayProcess) -> list[Agent]:
    return [Agent(gateway), Agent(gateway, stream=True)]


def assert_undisturbed(
    gateway: GatewayProcess, samples: str, before: set[str], agents: list[Agent]
):
    """`before`: the generations that were durable at the kill."""
    assert [row.status.name for row in gateway.trajectories()] == ["COMPLETED"] * len(TASKS)
    assert gateway.samples() == samples
    assert not check(gateway.journal).findings
    ids = [item for item, _ in gateway.engine.requests()]
    assert len(set(ids)) == CALLS
    assert not [item for item in before if ids.count(item) > 1], "sampled again although durable"
    histories = gateway.histories()
    for name, history in histories.items():
        assert history.status.name == "COMPLETED"
        assert history.reward == 0.5
        assert not history.forks, name
        assert not history.failures, name
    recorded = {
        (name, step.message.text)
        for name, history in histories.items()
        for step in history.generations
    }
    for agent in agents:
        assert set(agent.replies) <= recorded, "told and lost"
        assert len(agent.taken) == len(agent.completed)


def killed_and_resumed(gateway: GatewayProcess, plan: str, samples: str) -> bool:
    """False when the run ended before the crash point was reached."""
    gateway.start(crash=plan)
    agents = agents_of(gateway)
    for agent in agents:
        agent.start()
    code = gateway.ended()
    if code == 0:
        for agent in agents:
            agent.join(30)
        return False
    assert code == SIGKILLED, gateway.output
    before = gateway.durable()
    gateway.start()
    assert work(gateway, *agents) == 0, gateway.output
    assert_undisturbed(gateway, samples, before, agents)
    return True


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("part", range(FAST_POINTS))
def test_agents_outlive_a_gateway_killed_at_a_record_boundary(gateway, calm, when, part):
    samples, records = calm
    boundary = max(1, round((part + (0.3 if when == "before" else 0.7)) / FAST_POINTS * records))
    assert killed_and_resumed(gateway, f"{when}:{boundary}", samples)


@pytest.mark.exhaustive
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("when", ["before", "after"])
def test_agents_outlive_a_gateway_killed_at_every_record_boundary(tmp_path, engine, calm, when):
    samples, records = calm
    boundary, reached = 1, True
    while reached:
        engine.reset()
        gateway = GatewayProcess(tmp_path / f"{boundary}", engine, *BACK_SOON, tasks=TASKS)
        try:
            reached = killed_and_resumed(gateway, f"{when}:{boundary}", samples)
        finally:
            gateway.close()
        boundary += reached
    assert boundary > records
    print(f"{boundary - 1} kills {when} a commit, over {records} records")


@pytest.mark.parametrize("turn", [pytest.param(0, marks=pytest.mark.exhaustive), 2])
def test_agents_outlive_a_gateway_killed_in_a_call(gateway, engine, calm, turn):
    engine.set_faults(Fault(FaultKind.HOLD, matching=f"/a/0/{turn}."))
    gateway.start()
    agents = agents_of(gateway)
    for agent in agents:
        agent.start()
    until(lambda: engine.stats().held, what="a held call")
    before = gateway.durable()
    gateway.signal(signal.SIGKILL)
    gateway.ended()
    engine.set_faults()
    engine.release()
    gateway.start()
    assert work(gateway, *agents) == 0, gateway.output
    assert_undisturbed(gateway, calm[0], before, agents)


@pytest.mark.parametrize("turn", [0, pytest.param(2, marks=pytest.mark.exhaustive)])
def test_agents_outlive_a_gateway_killed_after_an_answer(gateway, engine, calm, turn):
    agents = agents_of(gateway)
    killed = []

    def kill(at: int) -> None:
        if at == turn and not killed:
            killed.append(gateway.process.pid)
            gateway.signal(signal.SIGKILL)

    gateway.start()
    for agent in agents:
        agent.after_call = kill
        agent.start()
    assert gateway.ended() == SIGKILLED, gateway.output
    before = gateway.durable()
    gateway.start()
    assert work(gateway, *agents) == 0, gateway.output
    assert_undisturbed(gateway, calm[0], before, agents)


def test_agents_that_died_with_the_gateway_are_given_back_their_past(gateway, engine, calm):
    """Others take their trajectories, when those have had their time to come back."""
    engine.set_faults(Fault(FaultKind.HOLD, matching="/a/0/2."))
    gateway.start()
    lost = agents_of(gateway)
    for agent in lost:
        agent.start()
    until(lambda: engine.stats().held, what="a held call")
    before = gateway.durable()
    for agent in lost:
        agent.halt()
    gateway.signal(signal.SIGKILL)
    gateway.ended()
    engine.set_faults()
    engine.release()
    gateway.start("--rejoin", 0.5)
    agents = agents_of(gateway)
    assert work(gateway, *agents) == 0, gateway.output
    assert_undisturbed(gateway, calm[0], before, agents)
    assert max(taken["attempt"] for agent in agents for taken in agent.taken) == 2


@pytest.mark.exhaustive
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("phase", ["call", "answer"])
@pytest.mark.parametrize("turn", range(TURNS))
def test_agents_outlive_one_worker_of_several_in_every_phase(tmp_path, engine, calm, phase, turn):
    gateway = GatewayProcess(tmp_path, engine, "--workers", 2, "--concurrency", 2, tasks=TASKS)
    try:
        agents = agents_of(gateway)
        if phase == "call":
            engine.set_faults(Fault(FaultKind.HOLD, matching=f"/a/0/{turn}."))
        killed: list[int] = []

        def kill(at: int) -> None:
            """Whoever answered, as soon as it has."""
            if phase == "answer" and at == turn and not killed:
                agent = next(agent for agent in agents if agent is threading.current_thread())
                killed.append(gateway.owner(agent.taken[-1]["task"]["id"]))
                os.kill(killed[0], signal.SIGKILL)

        gateway.start()
        for agent in agents:
            agent.after_call = kill
            agent.start()
        if phase == "call":
            until(lambda: engine.stats().held, what="a held call")
            killed.append(gateway.owner("a"))
            os.kill(killed[0], signal.SIGKILL)
            engine.set_faults()
            engine.release()
        assert work(gateway, *agents) == 0, gateway.output
        assert "it is started again" in gateway.output
        assert_undisturbed(gateway, calm[0], set(), agents)
    finally:
        gateway.close()
