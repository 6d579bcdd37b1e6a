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
from support.gateway.outpost import (
    REPLIES,
    RUN,
    SIGKILLED,
    TURNS,
    Agent,
    Outpost,
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
def outpost(tmp_path, engine):
    found = Outpost(tmp_path, engine, "--workers", 2, "--concurrency", 4, tasks=TASKS)
    yield found
    found.close()


def expected(tmp_path, engine) -> str:
    """What one process records, undisturbed."""
    alone = Outpost(tmp_path / "alone", engine, tasks=TASKS)
    try:
        alone.start()
        assert work(alone, Agent(alone), Agent(alone)) == 0, alone.said
    finally:
        alone.close()
    engine.reset()
    return alone.samples()


def metrics(outpost: Outpost) -> str:
    with urllib.request.urlopen(f"{outpost.url}/metrics") as answer:
        return answer.read().decode()


def counted(text: str, what: str) -> float:
    found = re.findall(rf"^holdfast_gateway_{what} (\S+)$", text, re.MULTILINE)
    return sum(float(value) for value in found)


def both_serve(outpost: Outpost) -> bool:
    try:
        with urllib.request.urlopen(f"{outpost.url}/health") as answer:
            return json.load(answer).get("workers") == 2
    except OSError:
        return False


def test_the_supervisor_shows_how_far_the_workers_are(outpost):
    outpost.shows_progress = True
    outpost.start()
    assert work(outpost, Agent(outpost), Agent(outpost)) == 0, outpost.said
    assert "6/6 done, 0 running, 0 failed, 0s left" in outpost.said


def test_few_trajectories_are_shared_among_the_workers(tmp_path, engine):
    outpost = Outpost(tmp_path, engine, "--workers", 2, "--concurrency", 64, tasks=TASKS)
    try:
        outpost.start()
        until(lambda: len(outpost.trajectories()) == len(TASKS))
        until(lambda: all(row.owner for row in outpost.trajectories()))
        owners = [row.owner for row in outpost.trajectories()]
        assert sorted(owners.count(one) for one in set(owners)) == [3, 3]
    finally:
        outpost.close()


def test_as_many_trajectories_are_open_as_all_workers_together_may_have(tmp_path, engine):
    tasks = [f"t{number}" for number in range(200)]
    options = ("--workers", 2, "--concurrency", 200)
    outpost = Outpost(tmp_path, engine, *options, tasks=tasks)
    try:
        outpost.start()
        until(lambda: both_serve(outpost))
        found = [posted(f"{outpost.url}/trajectories", {"wait": 20}) for _ in tasks]
        assert len({taken["trajectory"] for taken in found}) == len(tasks)
    finally:
        outpost.close()


def test_no_more_trajectories_are_open_than_all_workers_together_may_have(tmp_path, engine):
    outpost = Outpost(tmp_path, engine, "--workers", 2, "--concurrency", 5, tasks=TASKS)
    try:
        outpost.start()
        until(lambda: both_serve(outpost))
        found = [posted(f"{outpost.url}/trajectories", {"wait": 20}) for _ in range(5)]
        assert len({taken["trajectory"] for taken in found}) == 5
        with pytest.raises(urllib.error.HTTPError, match="404"):
            posted(f"{outpost.url}/trajectories", {"wait": 0})
    finally:
        outpost.close()


def test_whoever_is_asked_the_owner_answers_and_the_data_is_that_of_one_process(
    tmp_path, outpost, engine
):
    samples = expected(tmp_path, engine)
    outpost.start()
    until(lambda: both_serve(outpost))
    agents = [Agent(outpost), Agent(outpost, stream=True), Agent(outpost), Agent(outpost)]
    told: list[str] = []
    agents[0].after_call = lambda turn: told.append(metrics(outpost))
    assert work(outpost, *agents) == 0, outpost.said
    assert outpost.samples() == samples
    assert len(engine.requests()) == len(TASKS) * TURNS
    log = outpost.log.read_text()
    assert "worker=0 " in log
    assert "worker=1 " in log
    assert "wire=relayed" in log
    keys = [taken["key"] for agent in agents for taken in agent.taken]
    assert len(keys) == len(TASKS)
    assert not [key for key in keys if key in log]
    assert 'worker="0"' in told[-1]
    assert 'worker="1"' in told[-1]
    assert counted(told[-1], r'answers_total\{worker="\d",source="sampled"\}') > 0
    assert not check(outpost.journal).findings


def test_a_worker_killed_in_a_call_is_started_again_and_its_agent_goes_on_with_its_key(
    tmp_path, outpost, engine
):
    samples = expected(tmp_path, engine)
    engine.set_faults(Fault(FaultKind.HOLD, matching="/a/0/1."))
    outpost.start()
    agents = [Agent(outpost), Agent(outpost, stream=True), Agent(outpost)]
    for agent in agents:
        agent.start()
    until(lambda: engine.stats().held, what="a held call")
    before = outpost.durable()
    os.kill(outpost.owner("a"), signal.SIGKILL)
    engine.set_faults()
    engine.release()
    assert work(outpost, *agents) == 0, outpost.said
    assert "was ended by SIGKILL; it is started again" in outpost.said
    assert outpost.samples() == samples
    ids = [one for one, _ in engine.requests()]
    # Only calls that were under way may be asked for again.
    assert not [one for one in before if ids.count(one) > 1]
    assert len(set(ids)) == len(TASKS) * TURNS
    # An attempt whose agent was being told of it when the worker died is nobody's: another follows.
    told = [taken["trajectory"] for agent in agents for taken in agent.taken]
    assert len(told) == len(set(told)), "the agent lived, and so did its attempt"
    histories = outpost.histories()
    assert len(histories[f"{RUN}/a/0"].attempts) == 1
    assert not [name for name, history in histories.items() if history.forks]


def test_sigterm_lets_all_workers_finish_and_the_same_command_goes_on(tmp_path, outpost, engine):
    samples = expected(tmp_path, engine)
    outpost.start()
    agents = [Agent(outpost), Agent(outpost, stream=True)]
    for agent in agents:
        agent.start()
    until(lambda: len(agents[0].heard) > 1)
    workers = outpost.workers
    outpost.signal(signal.SIGTERM)
    assert outpost.ended() == 143, outpost.said
    assert len(workers) == 2
    assert not [pid for pid in workers if is_running(pid)]
    assert "to go on: holdfast gateway" in outpost.said
    assert not [row for row in outpost.trajectories() if row.owner]
    outpost.start()
    assert work(outpost, *agents) == 0, outpost.said
    assert outpost.samples() == samples


def test_a_second_sigterm_stops_at_once_and_leaves_nobody(outpost, engine):
    engine.set_faults(Fault(FaultKind.HOLD))
    outpost.start("--grace", 600)
    agent = Agent(outpost)
    agent.start()
    until(lambda: engine.stats().held, what="a held call")
    workers = outpost.workers
    outpost.signal(signal.SIGTERM)
    outpost.hear("again to stop at once")
    outpost.signal(signal.SIGTERM)
    assert outpost.ended() == 143, outpost.said
    assert "stopped at once\nto go on: holdfast gateway" in outpost.said
    until(lambda: not [pid for pid in workers if is_running(pid)])
    agent.halt()


def test_workers_do_not_outlive_a_supervisor_that_is_killed(outpost, engine):
    outpost.start()
    until(lambda: both_serve(outpost))
    workers = outpost.workers
    outpost.signal(signal.SIGKILL)
    assert outpost.ended() == SIGKILLED
    until(lambda: not [pid for pid in workers if is_running(pid)])
    outpost.start()
    assert work(outpost, Agent(outpost), Agent(outpost)) == 0, outpost.said


def test_a_worker_that_is_killed_again_and_again_ends_the_command(outpost, engine):
    outpost.start()
    until(lambda: both_serve(outpost))
    killed: set[int] = set()
    first = outpost.workers[0]
    others = set(outpost.workers) - {first}

    def kill() -> bool:
        for pid in set(outpost.workers) - others - killed:
            os.kill(pid, signal.SIGKILL)
            killed.add(pid)
        return outpost.process.poll() is not None

    until(kill)
    assert outpost.ended() == 5, outpost.said
    assert "was ended by SIGKILL 6 times" in outpost.said
    assert len(killed) == 6
    assert not [pid for pid in others if is_running(pid)]


def test_the_older_of_two_attempts_is_refused_at_every_worker(outpost, engine):
    outpost.start()
    until(lambda: both_serve(outpost))
    keys = []
    for _ in range(3):
        taken = posted(f"{outpost.url}/trajectories", {"task": "c", "wait": 20})
        keys.append(taken["key"])
    assert taken["attempt"] == 3
    body = {"model": "m", "messages": taken["task"]["messages"]}
    for key, status in [(keys[0], 409), (keys[1], 409), (keys[2], 200)] * 4:
        try:
            posted(f"{outpost.url}/v1/chat/completions", body, key)
            found = 200
        except urllib.error.HTTPError as error:
            found = error.code
        assert found == status


def commands(outpost):
    """Of its workers, once they have their own."""
    return [Path(f"/proc/{pid}/cmdline").read_text() for pid in outpost.workers]


def test_a_worker_has_no_password_in_its_command_line(tmp_path):
    with FakeEngine(replies=REPLIES) as engine:
        secret = engine.url.replace("://", "://me:pass-of-the-engine@")
        place = SimpleNamespace(url=secret, model=engine.model)
        outpost = Outpost(tmp_path, place, "--workers", 2, "--concurrency", 2)
        outpost.start()
        try:
            until(lambda: sum("gateway" in line for line in commands(outpost)) == 2)
            lines = commands(outpost)
            assert "pass-of-the-engine" not in "".join(lines)
        finally:
            outpost.close()
