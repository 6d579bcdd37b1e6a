"""SIGKILL of the driver, which holds the gateway and has started the agents, at record boundaries.

The agents are programs of their own: they lose their connections, and are started anew by the next
driver, which gives them back what is durable.
"""

import asyncio
import json
import os
import signal
import sys
import time
from pathlib import Path
from threading import Thread

import pytest

from holdfast.journal import open_journal
from holdfast.journal.damage.check import check
from holdfast.records.history import History
from holdfast.testing import Fault, FaultKind
from support.crash.agents_workload import REPLIES
from support.crash.killable_run import (
    SIGKILLED,
    Baseline,
    KillableRun,
    kill_and_resume,
    kill_everywhere,
    read_samples,
    undisturbed,
)
from support.exhaustive import points
from support.gateway import warm_agents

QUICK = ("urllib0", "urllib-stream0", "urllib-stream1")
LIBRARIES = ("openai0", "openai-stream0")
EVERY_LIBRARY = (*LIBRARIES, "anthropic-stream0", "responses0")
FAST_POINTS = points(3, 7)
FAULTS = (
    Fault(FaultKind.ERROR_500, matching="urllib0/0/1."),
    Fault(FaultKind.RESET_AFTER, matching="urllib-stream0/0/2."),
    Fault(FaultKind.STREAM_CUT, matching="urllib-stream1/0/0."),
)


def laboratory(folder: Path, names: tuple[str, ...], **options) -> KillableRun:
    warm_agents.start()
    return KillableRun(
        folder,
        names=names,
        samples=1,
        workload="agents_workload",
        max_tokens=400,
        **{"faults": FAULTS, "replies": REPLIES, **options},
    )


@pytest.fixture(scope="module")
def killable(tmp_path_factory):
    with laboratory(tmp_path_factory.mktemp("agents"), QUICK) as killable:
        yield killable


@pytest.fixture(scope="module")
def libraries(tmp_path_factory):
    names = EVERY_LIBRARY if os.environ.get("HOLDFAST_EXHAUSTIVE") == "1" else LIBRARIES
    with laboratory(tmp_path_factory.mktemp("libraries"), names) as killable:
        yield killable


@pytest.fixture(scope="module")
def libraries_baseline(libraries):
    return undisturbed(libraries)


def test_two_undisturbed_runs_of_agents_give_the_same_bytes(killable, baseline):
    assert undisturbed(killable).samples == baseline.samples
    assert len(baseline.samples) == len(QUICK)
    # Four calls each; the faults that strike cost a try of their own.
    assert baseline.requests == 4 * len(QUICK) + len(FAULTS)


def place_of(when: str, part: int, points: int, records: int) -> str:
    position = (part + (0.25 if when == "after" else 0.75)) / points
    return f"{when}:{max(1, round(position * records))}"


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("part", range(FAST_POINTS))
def test_a_driver_killed_at_a_record_boundary_changes_nothing(killable, baseline, when, part):
    plan = place_of(when, part, FAST_POINTS, baseline.records)
    assert kill_and_resume(killable, baseline, plan), plan


@pytest.mark.parametrize("when", ["before", "after"])
def test_agents_on_libraries_go_on_after_a_kill_of_the_driver(libraries, libraries_baseline, when):
    plan = place_of(when, 0, 1, libraries_baseline.records)
    assert kill_and_resume(libraries, libraries_baseline, plan), plan


@pytest.mark.exhaustive
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_driver_killed_at_every_record_boundary_changes_nothing(killable, baseline, when):
    kill_everywhere(killable, baseline, when)


@pytest.mark.exhaustive
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("when", ["before", "after"])
def test_agents_on_libraries_go_on_after_a_kill_at_every_record_boundary(
    libraries, libraries_baseline, when
):
    boundary = 1
    while kill_and_resume(libraries, libraries_baseline, f"{when}:{boundary}"):
        boundary += 1
    assert boundary > libraries_baseline.records
    print(f"{boundary - 1} kills {when} a commit, over {libraries_baseline.records} records")


# --- what an agent sees of where it is


@pytest.fixture(scope="module")
def located(tmp_path_factory):
    """With temporary folders of its own: others may work on a run of the same name."""
    folder = tmp_path_factory.mktemp("located")
    (folder / "tmp").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(folder / "tmp"))
        with laboratory(folder, ("located0", "located1"), faults=()) as killable:
            yield killable


@pytest.fixture(scope="module")
def located_baseline(located):
    return undisturbed(located)


LOCATED = ("agent.folder:2", "agent.ended:1", "before:12", "after:16", "after:19")


@pytest.mark.parametrize("plan", LOCATED)
def test_an_agent_that_tells_the_model_where_it_is_goes_on_after_a_kill_of_the_driver(
    located, located_baseline, plan
):
    assert kill_and_resume(located, located_baseline, plan), plan
    assert not list((located.folder / "tmp").glob("holdfast-agents-*/*/*"))


@pytest.mark.exhaustive
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("when", ["before", "after", "agent.folder", "agent.ended"])
def test_an_agent_that_tells_the_model_where_it_is_goes_on_after_a_kill_at_every_point(
    located, located_baseline, when
):
    boundary = 1
    while kill_and_resume(located, located_baseline, f"{when}:{boundary}"):
        boundary += 1
    assert boundary > 1


# --- calls side by side: which is recorded first is a matter of timing


@pytest.fixture(scope="module")
def parallel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("parallel")
    with laboratory(folder, ("parallel0",), faults=(), replies=("words {n}{n}{n}",)) as killable:
        yield killable


@pytest.fixture(scope="module")
def parallel_baseline(parallel):
    return undisturbed(parallel)


def branches(samples: dict[str, str]) -> list[str]:
    """The samples, however they are numbered."""
    decoder, (lines,), at, results = json.JSONDecoder(), samples.values(), 0, []
    while at < len(lines):
        row, at = decoder.raw_decode(lines, at)
        del row["branch"]
        results.append(json.dumps(row, sort_keys=True))
    return sorted(results)


def kill_in_parallel(killable: KillableRun, baseline: Baseline, plan: str) -> bool:
    place = killable.fresh(plan.replace(":", "-"))
    if killable.drive(place, crash=plan) == 0:
        return False
    before = killable.world(place)
    assert killable.drive(place) == 0, plan
    after = killable.world(place)
    assert branches(read_samples(place / "samples.jsonl")) == branches(baseline.samples), plan
    durable = {f"{name}/{path}" for name, paths in before.steps.items() for path in paths}
    lost = len(before.requests) - len(durable)
    assert len(after.requests) <= baseline.requests + lost, plan
    assert not check(place / "journal.db").findings
    return True


def test_a_driver_killed_among_calls_at_once_loses_and_repeats_none(parallel, parallel_baseline):
    assert len(branches(parallel_baseline.samples)) == 6
    plan = f"after:{parallel_baseline.records // 2}"
    assert kill_in_parallel(parallel, parallel_baseline, plan), plan


@pytest.mark.exhaustive
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_driver_killed_anywhere_among_calls_at_once_loses_and_repeats_none(
    parallel, parallel_baseline, when
):
    boundary = 1
    while kill_in_parallel(parallel, parallel_baseline, f"{when}:{boundary}"):
        boundary += 1
    assert boundary > parallel_baseline.records


# --- calls side by side that call tools, and of which nothing comes in the same order twice


@pytest.fixture(scope="module")
def shuffling(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shuffling")
    with laboratory(folder, ("shuffling0",), faults=()) as killable:
        yield killable


@pytest.fixture(scope="module")
def shuffling_baseline(shuffling):
    return undisturbed(shuffling)


def answer_ids(place: Path) -> set[tuple[str, tuple[str, ...]]]:
    """The ids of all answers that count, with those of the calls in them."""

    async def histories():
        journal = open_journal(place / "journal.db", read_only=True)
        try:
            run = await journal.find_run("crash")
            return [History(log) async for _, log in journal.histories(run)]
        finally:
            await journal.close()

    (history,) = asyncio.run(histories())
    assert not history.prefix_breaks
    return {
        (called.answer, tuple(call.id for call in history.steps[called.path].message.tool_calls))
        for called in history.calls.values()
    }


def test_orders_change_neither_ids_nor_data(shuffling, shuffling_baseline):
    places = [shuffling.fresh(f"undisturbed-{number}") for number in range(2)]
    for place in places:
        assert shuffling.drive(place) == 0
        samples = read_samples(place / "samples.jsonl")
        assert branches(samples) == branches(shuffling_baseline.samples)
    first, second = map(answer_ids, places)
    assert first == second
    assert len(first) == 12
    assert len({call for _, calls in first for call in calls}) >= 9
    for when, part in (("before", 0.3), ("after", 0.5), ("after", 0.8)):
        plan = f"{when}:{round(part * shuffling_baseline.records)}"
        assert kill_in_parallel(shuffling, shuffling_baseline, plan), plan
        assert answer_ids(shuffling.folder / plan.replace(":", "-")) == first, plan


# --- what is left behind


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends children with their parent")
def test_an_agent_does_not_outlive_its_driver_however_stubborn_it_is(tmp_path):
    with laboratory(tmp_path, ("stubborn0",), faults=()) as killable:
        place = killable.fresh("stubborn")
        assert killable.drive(place, crash="after:20") == SIGKILLED
        (pid,) = map(int, (place / "effects.pids").read_text().split())
        deadline = time.monotonic() + 60
        try:
            while is_running(pid):
                assert time.monotonic() < deadline, "it lives on, and nobody knows of it"
                time.sleep(0.02)
        finally:
            if is_running(pid):
                os.kill(pid, signal.SIGKILL)


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def until(condition, *, what: str, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not come"
        time.sleep(0.01)


# --- an agent that dies while it waits, and then its driver


@pytest.fixture
def waiting(tmp_path):
    """One agent whose first call is held by the engine."""
    held = (Fault(FaultKind.HOLD, matching="urllib0/0/0."),)
    with laboratory(tmp_path, ("urllib0",), faults=held) as killable:
        yield killable


def drive_until_it_waits(
    killable: KillableRun, place: Path, crash: str = ""
) -> tuple[Thread, list[int], int]:
    """The driver, its exit code when it has one, and the agent's pid."""
    codes: list[int] = []
    driver = Thread(target=lambda: codes.append(killable.drive(place, crash=crash)))
    driver.start()
    until(lambda: killable.engine.stats().held, what="a held call")
    (agent,) = map(int, (place / "effects.pids").read_text().split())
    return driver, codes, agent


def kill_agent(agent: int) -> None:
    os.kill(agent, signal.SIGKILL)
    until(lambda: not Path(f"/proc/{agent}").exists(), what="its driver's notice")


def assert_as_undisturbed(killable: KillableRun, place: Path, *, sampled_again: int) -> None:
    assert not check(place / "journal.db").findings
    requests = killable.world(place).requests
    killable.faults = ()
    calm = undisturbed(killable)
    assert read_samples(place / "samples.jsonl") == calm.samples
    assert len(requests) == calm.requests + sampled_again


def test_an_answer_whose_agent_died_is_durable_also_when_its_driver_is_killed_then(waiting):
    place = waiting.fresh("after")
    driver, codes, agent = drive_until_it_waits(waiting, place, crash="gateway.finished:1")
    kill_agent(agent)
    waiting.engine.release()
    driver.join(60)
    assert codes == [SIGKILLED]
    waiting.engine.set_faults()
    assert waiting.drive(place) == 0
    assert_as_undisturbed(waiting, place, sampled_again=0)


def test_a_driver_killed_while_it_waits_for_the_answer_of_a_dead_agent_loses_that_alone(waiting):
    place = waiting.fresh("during")
    driver, codes, agent = drive_until_it_waits(waiting, place)
    parent = int(Path(f"/proc/{agent}/stat").read_text().rpartition(")")[2].split()[1])
    kill_agent(agent)
    os.kill(parent, signal.SIGKILL)
    driver.join(60)
    assert codes == [SIGKILLED]
    waiting.engine.set_faults()
    waiting.engine.release()
    assert waiting.drive(place) == 0
    assert_as_undisturbed(waiting, place, sampled_again=1)
