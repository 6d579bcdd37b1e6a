"""Several workers serve one address: whoever is asked, each trajectory is answered by its owner; a
worker that is killed is started again, and its agents go on."""

import json
import os
import re
import signal
import urllib.error
import urllib.request
from pathlib import Path
from types import SimpleNamespace

import pytest

from holdfast.journal.damage.check import check
from holdfast.testing import FakeEngine, Fault, FaultKind
from support.gateway.gateway_process import (
    REPLIES,
    RUN,
    SIGKILLED,
    TURNS,
    Agent,
    GatewayProcess,
    is_running,
    posted,
    until,
    work,
)

TASKS = tuple("abcdef")


@pytest.fixture(scope="module")
def shared_engine():
    with FakeEngine(replies=REPLIES) as engine:
        yield engine


@pytest.fixture
def engine(shared_engine):
    shared_engine.reset()
    shared_engine.set_faults()
    return shared_engine


@pytest.fixture
def gateway(tmp_path, engine):
    result = GatewayProcess(tmp_path, engine, "--workers", 2, "--concurrency", 4, tasks=TASKS)
    yield result
    result.close()


def expected(tmp_path, engine) -> str:
    """What one process records, undisturbed."""
    alone = GatewayProcess(tmp_path / "alone", engine, tasks=TASKS)
    try:
        alone.start()
        assert work(alone, Agent(alone), Agent(alone)) == 0, alone.output
    finally:
        alone.close()
    engine.reset()
    return alone.samples()


def metrics(gateway: GatewayProcess) -> str:
    with urllib.request.urlopen(f"{gateway.url}/metrics") as answer:
        return answer.read().decode()


def counted(text: str, what: str) -> float:
    matches = re.findall(rf"^holdfast_gateway_{what} (\S+)$", text, re.MULTILINE)
    return sum(float(value) for value in matches)


def both_serve(gateway: GatewayProcess) -> bool:
    try:
        with urllib.request.urlopen(f"{gateway.url}/health") as answer:
            return json.load(answer).get("workers") == 2
    except OSError:
        return False


def test_the_supervisor_shows_how_far_the_workers_are(gateway):
    gateway.shows_progress = True
    gateway.start()
    assert work(gateway, Agent(gateway), Agent(gateway)) == 0, gateway.output
    assert "6/6 done" in gateway.output


def test_few_trajectories_are_shared_among_the_workers(tmp_path, engine):
    gateway = GatewayProcess(tmp_path, engine, "--workers", 2, "--concurrency", 64, tasks=TASKS)
    try:
        gateway.start()
        until(lambda: len(gateway.trajectories()) == len(TASKS))
        until(lambda: all(row.owner for row in gateway.trajectories()))
        owners = [row.owner for row in gateway.trajectories()]
        assert sorted(owners.count(owner) for owner in set(owners)) == [3, 3]
    finally:
        gateway.close()


def test_as_many_trajectories_are_open_as_all_workers_together_may_have(tmp_path, engine):
    tasks = [f"t{number}" for number in range(200)]
    options = ("--workers", 2, "--concurrency", 200)
    gateway = GatewayProcess(tmp_path, engine, *options, tasks=tasks)
    try:
        gateway.start()
        until(lambda: both_serve(gateway))
        results = [posted(f"{gateway.url}/trajectories", {"wait": 20}) for _ in tasks]
        assert len({taken["trajectory"] for taken in results}) == len(tasks)
    finally:
        gateway.close()


def test_no_more_trajectories_are_open_than_all_workers_together_may_have(tmp_path, engine):
    gateway = GatewayProcess(tmp_path, engine, "--workers", 2, "--concurrency", 5, tasks=TASKS)
    try:
        gateway.start()
        until(lambda: both_serve(gateway))
        results = [posted(f"{gateway.url}/trajectories", {"wait": 20}) for _ in range(5)]
        assert len({taken["trajectory"] for taken in results}) == 5
        with pytest.raises(urllib.error.HTTPError, match="404"):
            posted(f"{gateway.url}/trajectories", {"wait": 0})
    finally:
        gateway.close()


def test_whoever_is_asked_the_owner_answers_and_the_data_is_that_of_one_process(
    tmp_path, gateway, engine
):
    samples = expected(tmp_path, engine)
    gateway.start()
    until(lambda: both_serve(gateway))
    agents = [Agent(gateway), Agent(gateway, stream=True), Agent(gateway), Agent(gateway)]
    texts: list[str] = []
    agents[0].after_call = lambda turn: texts.append(metrics(gateway))
    assert work(gateway, *agents) == 0, gateway.output
    assert gateway.samples() == samples
    assert len(engine.requests()) == len(TASKS) * TURNS
    log = gateway.log.read_text()
    assert "worker=0 " in log
    assert "worker=1 " in log
    assert "wire=relayed" in log
    keys = [taken["key"] for agent in agents for taken in agent.taken]
    assert len(keys) == len(TASKS)
    assert not [key for key in keys if key in log]
    assert 'worker="0"' in texts[-1]
    assert 'worker="1"' in texts[-1]
    assert counted(texts[-1], r'answers_total\{worker="\d",source="sampled"\}') > 0
    assert not check(gateway.journal).findings


def test_a_worker_killed_in_a_call_is_started_again_and_its_agent_goes_on_with_its_key(
    tmp_path, gateway, engine
):
    samples = expected(tmp_path, engine)
    engine.set_faults(Fault(FaultKind.HOLD, matching="/a/0/1."))
    gateway.start()
    agents = [Agent(gateway), Agent(gateway, stream=True), Agent(gateway)]
    for agent in agents:
        agent.start()
    until(lambda: engine.stats().held, what="a held call")
    before = gateway.durable()
    os.kill(gateway.owner("a"), signal.SIGKILL)
    engine.set_faults()
    engine.release()
    assert work(gateway, *agents) == 0, gateway.output
    assert "was ended by SIGKILL; it is started again" in gateway.output
    assert gateway.samples() == samples
    ids = [item for item, _ in engine.requests()]
    # Only calls that were under way may be asked for again.
    assert not [item for item in before if ids.count(item) > 1]
    assert len(set(ids)) == len(TASKS) * TURNS
    # An attempt whose agent was being told of it when the worker died is nobody's: another follows.
    trajectories = [taken["trajectory"] for agent in agents for taken in agent.taken]
    assert len(trajectories) == len(set(trajectories)), "the agent lived, and so did its attempt"
    histories = gateway.histories()
    assert len(histories[f"{RUN}/a/0"].attempts) == 1
    assert not [name for name, history in histories.items() if history.forks]


def test_sigterm_lets_all_workers_finish_and_the_same_command_goes_on(tmp_path, gateway, engine):
    samples = expected(tmp_path, engine)
    gateway.start()
    agents = [Agent(gateway), Agent(gateway, stream=True)]
    for agent in agents:
        agent.start()
    until(lambda: len(agents[0].replies) > 1)
    workers = gateway.workers
    gateway.signal(signal.SIGTERM)
    assert gateway.ended() == 143, gateway.output
    assert len(workers) == 2
    assert not [pid for pid in workers if is_running(pid)]
    assert "to go on: holdfast gateway" in gateway.output
    assert not [row for row in gateway.trajectories() if row.owner]
    gateway.start()
    assert work(gateway, *agents) == 0, gateway.output
    assert gateway.samples() == samples


def test_a_second_sigterm_stops_at_once_and_leaves_nobody(gateway, engine):
    engine.set_faults(Fault(FaultKind.HOLD))
    gateway.start("--grace", 600)
    agent = Agent(gateway)
    agent.start()
    until(lambda: engine.stats().held, what="a held call")
    workers = gateway.workers
    gateway.signal(signal.SIGTERM)
    gateway.hear("again to stop at once")
    gateway.signal(signal.SIGTERM)
    assert gateway.ended() == 143, gateway.output
    assert "stopped at once\nto go on: holdfast gateway" in gateway.output
    until(lambda: not [pid for pid in workers if is_running(pid)])
    agent.halt()


def test_workers_do_not_outlive_a_supervisor_that_is_killed(gateway, engine):
    gateway.start()
    until(lambda: both_serve(gateway))
    workers = gateway.workers
    gateway.signal(signal.SIGKILL)
    assert gateway.ended() == SIGKILLED
    until(lambda: not [pid for pid in workers if is_running(pid)])
    gateway.start()
    assert work(gateway, Agent(gateway), Agent(gateway)) == 0, gateway.output


def test_a_worker_that_is_killed_again_and_again_ends_the_command(gateway, engine):
    gateway.start()
    until(lambda: both_serve(gateway))
    killed: set[int] = set()
    first = gateway.workers[0]
    others = set(gateway.workers) - {first}

    def kill() -> bool:
        for pid in set(gateway.workers) - others - killed:
            os.kill(pid, signal.SIGKILL)
            killed.add(pid)
        return gateway.process.poll() is not None

    until(kill)
    assert gateway.ended() == 5, gateway.output
    assert "was ended by SIGKILL 6 times" in gateway.output
    assert len(killed) == 6
    assert not [pid for pid in others if is_running(pid)]


def test_the_older_of_two_attempts_is_refused_at_every_worker(gateway, engine):
    gateway.start()
    until(lambda: both_serve(gateway))
    keys = []
    for _ in range(3):
        taken = posted(f"{gateway.url}/trajectories", {"task": "c", "wait": 20})
        keys.append(taken["key"])
    assert taken["attempt"] == 3
    body = {"model": "m", "messages": taken["task"]["messages"]}
    for key, status in [(keys[0], 409), (keys[1], 409), (keys[2], 200)] * 4:
        try:
            posted(f"{gateway.url}/v1/chat/completions", body, key)
            code = 200
        except urllib.error.HTTPError as error:
            code = error.code
        assert code == status


def commands(gateway):
    """Of its workers, once they have their own."""
    return [Path(f"/proc/{pid}/cmdline").read_text() for pid in gateway.workers]


def test_a_worker_has_no_password_in_its_command_line(tmp_path):
    with FakeEngine(replies=REPLIES) as engine:
        secret = engine.url.replace("://", "://me:pass-of-the-engine@")
        place = SimpleNamespace(url=secret, model=engine.model)
        gateway = GatewayProcess(tmp_path, place, "--workers", 2, "--concurrency", 2)
        gateway.start()
        try:
            until(lambda: sum("gateway" in line for line in commands(gateway)) == 2)
            lines = commands(gateway)
            assert "pass-of-the-engine" not in "".join(lines)
        finally:
            gateway.close()
