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
from support.gateway.outpost import REPLIES, SIGKILLED, TURNS, Agent, Outpost, until, work

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
    outpost = Outpost(tmp_path_factory.mktemp("calm"), shared_engine, tasks=TASKS)
    try:
        outpost.start()
        assert work(outpost, *agents_of(outpost)) == 0, outpost.said
    finally:
        outpost.close()
    assert len(shared_engine.requests()) == CALLS
    return outpost.samples(), check(outpost.journal).records


@pytest.fixture
def outpost(tmp_path, engine):
    found = Outpost(tmp_path, engine, *BACK_SOON, tasks=TASKS)
    yield found
    found.close()


def agents_of(outpost: Outpost) -> list[Agent]:
    return [Agent(outpost), Agent(outpost, stream=True)]


def assert_undisturbed(outpost: Outpost, samples: str, before: set[str], agents: list[Agent]):
    """`before`: the generations that were durable at the kill."""
    assert [row.status.name for row in outpost.trajectories()] == ["COMPLETED"] * len(TASKS)
    assert outpost.samples() == samples
    assert not check(outpost.journal).findings
    ids = [one for one, _ in outpost.engine.requests()]
    assert len(set(ids)) == CALLS
    assert not [one for one in before if ids.count(one) > 1], "sampled again although durable"
    histories = outpost.histories()
    for name, history in histories.items():
        assert history.status.name == "COMPLETED"
        assert history.reward == 0.5
        assert not history.forks, name
        assert not history.failures, name
    recorded = {
        (name, step.message.text) for name, one in histories.items() for step in one.generations
    }
    for agent in agents:
        assert set(agent.heard) <= recorded, "told and lost"
        assert len(agent.taken) == len(agent.completed)


def killed_and_resumed(outpost: Outpost, plan: str, samples: str) -> bool:
    """False when the run ended before the crash point was reached."""
    outpost.start(crash=plan)
    agents = agents_of(outpost)
    for agent in agents:
        agent.start()
    code = outpost.ended()
    if code == 0:
        for agent in agents:
            agent.join(30)
        return False
    assert code == SIGKILLED, outpost.said
    before = outpost.durable()
    outpost.start()
    assert work(outpost, *agents) == 0, outpost.said
    assert_undisturbed(outpost, samples, before, agents)
    return True


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("part", range(FAST_POINTS))
def test_agents_outlive_a_gateway_killed_at_a_record_boundary(outpost, calm, when, part):
    samples, records = calm
    boundary = max(1, round((part + (0.3 if when == "before" else 0.7)) / FAST_POINTS * records))
    assert killed_and_resumed(outpost, f"{when}:{boundary}", samples)


@pytest.mark.exhaustive
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("when", ["before", "after"])
def test_agents_outlive_a_gateway_killed_at_every_record_boundary(tmp_path, engine, calm, when):
    samples, records = calm
    boundary, reached = 1, True
    while reached:
        engine.reset()
        outpost = Outpost(tmp_path / f"{boundary}", engine, *BACK_SOON, tasks=TASKS)
        try:
            reached = killed_and_resumed(outpost, f"{when}:{boundary}", samples)
        finally:
            outpost.close()
        boundary += reached
    assert boundary > records
    print(f"{boundary - 1} kills {when} a commit, over {records} records")


@pytest.mark.parametrize("turn", [pytest.param(0, marks=pytest.mark.exhaustive), 2])
def test_agents_outlive_a_gateway_killed_in_a_call(outpost, engine, calm, turn):
    engine.set_faults(Fault(FaultKind.HOLD, matching=f"/a/0/{turn}."))
    outpost.start()
    agents = agents_of(outpost)
    for agent in agents:
        agent.start()
    until(lambda: engine.stats().held, what="a held call")
    before = outpost.durable()
    outpost.signal(signal.SIGKILL)
    outpost.ended()
    engine.set_faults()
    engine.release()
    outpost.start()
    assert work(outpost, *agents) == 0, outpost.said
    assert_undisturbed(outpost, calm[0], before, agents)


@pytest.mark.parametrize("turn", [0, pytest.param(2, marks=pytest.mark.exhaustive)])
def test_agents_outlive_a_gateway_killed_after_an_answer(outpost, engine, calm, turn):
    agents = agents_of(outpost)
    killed = []

    def kill(at: int) -> None:
        if at == turn and not killed:
            killed.append(outpost.process.pid)
            outpost.signal(signal.SIGKILL)

    outpost.start()
    for agent in agents:
        agent.after_call = kill
        agent.start()
    assert outpost.ended() == SIGKILLED, outpost.said
    before = outpost.durable()
    outpost.start()
    assert work(outpost, *agents) == 0, outpost.said
    assert_undisturbed(outpost, calm[0], before, agents)


def test_agents_that_died_with_the_gateway_are_given_back_their_past(outpost, engine, calm):
    """Others take their trajectories, when those have had their time to come back."""
    engine.set_faults(Fault(FaultKind.HOLD, matching="/a/0/2."))
    outpost.start()
    lost = agents_of(outpost)
    for agent in lost:
        agent.start()
    until(lambda: engine.stats().held, what="a held call")
    before = outpost.durable()
    for agent in lost:
        agent.halt()
    outpost.signal(signal.SIGKILL)
    outpost.ended()
    engine.set_faults()
    engine.release()
    outpost.start("--rejoin", 0.5)
    agents = agents_of(outpost)
    assert work(outpost, *agents) == 0, outpost.said
    assert_undisturbed(outpost, calm[0], before, agents)
    assert max(taken["attempt"] for agent in agents for taken in agent.taken) == 2


@pytest.mark.exhaustive
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("phase", ["call", "answer"])
@pytest.mark.parametrize("turn", range(TURNS))
def test_agents_outlive_one_worker_of_several_in_every_phase(tmp_path, engine, calm, phase, turn):
    outpost = Outpost(tmp_path, engine, "--workers", 2, "--concurrency", 2, tasks=TASKS)
    try:
        agents = agents_of(outpost)
        if phase == "call":
            engine.set_faults(Fault(FaultKind.HOLD, matching=f"/a/0/{turn}."))
        killed: list[int] = []

        def kill(at: int) -> None:
            """Whoever answered, as soon as it has."""
            if phase == "answer" and at == turn and not killed:
                agent = next(one for one in agents if one is threading.current_thread())
                killed.append(outpost.owner(agent.taken[-1]["task"]["id"]))
                os.kill(killed[0], signal.SIGKILL)

        outpost.start()
        for agent in agents:
            agent.after_call = kill
            agent.start()
        if phase == "call":
            until(lambda: engine.stats().held, what="a held call")
            killed.append(outpost.owner("a"))
            os.kill(killed[0], signal.SIGKILL)
            engine.set_faults()
            engine.release()
        assert work(outpost, *agents) == 0, outpost.said
        assert "it is started again" in outpost.said
        assert_undisturbed(outpost, calm[0], set(), agents)
    finally:
        outpost.close()
