"""Drivers whose journal is on PostgreSQL, through the command line: frozen past their lease,
killed, in PID namespaces of their own, and cut off from the database. What they export is what an
undisturbed run on a file exports."""

import asyncio
import signal
import time
from typing import Any

import pytest

from holdfast.journal.damage.check_server import check_server
from holdfast.testing import FakeEngine, Fault, FaultKind
from support.crash.command import export_samples, finished, holdfast, let_go, run_words, write_tasks
from support.journal import postgres_server
from support.journal.cut_network import CutNetwork
from support.namespaces import IN_A_PID_NAMESPACE, needs_namespaces
from support.network_namespace import NetworkNamespace, skip_where_there_are_none

pytestmark = pytest.mark.skipif(
    not postgres_server.is_available(), reason="needs a PostgreSQL server"
)
TASKS, SAMPLES = 8, 2
LEASE = 3
THREE_LEASES = 3 * LEASE


class Place:
    """A folder, an engine, a database, and `holdfast run` with them."""

    def __init__(self, folder, engine: FakeEngine, url: str, *, tool: str):
        self.folder, self.engine, self.url = folder, engine, url
        self.tool = tool
        names = [f"{tool}{number}" for number in range(TASKS)]
        self._tasks = write_tasks(folder / "tasks.jsonl", names)
        self.expected, self.requests = self._undisturbed()

    def _undisturbed(self) -> tuple[bytes, int]:
        place = self.folder / "undisturbed"
        place.mkdir()
        env = {"HOLDFAST_EFFECTS": str(place / "effects")}
        arguments = run_words(place, self.engine, self._tasks, "--samples", SAMPLES)
        code, _, err = finished(holdfast(*arguments, env=env))
        assert code == 0, err
        requests = self.engine.stats().requests
        self.engine.reset()
        return export_samples(place), requests

    def start(self, *extra: object, url: str = "", policy: str = "", around: tuple[str, ...] = ()):
        arguments = run_words(
            self.folder, self.engine, self._tasks, "--samples", SAMPLES, "--concurrency", 2, *extra,
            journal=url or self.url,
        )  # fmt: skip
        command = tuple(
            policy if policy and word == self.engine.url else word for word in arguments
        )
        env = {"HOLDFAST_EFFECTS": str(self.folder / "effects")}
        return holdfast(*command, env=env, around=around)

    def hold(self) -> None:
        """The engine answers nothing of the first task's until it is let go."""
        self.engine.set_faults(Fault(FaultKind.HOLD, matching=f"/{self.tool}0/"))

    def let_all_go(self) -> None:
        self.engine.set_faults()
        while self.engine.stats().in_flight:
            self.engine.release()
            time.sleep(0.01)

    def export(self) -> bytes:
        return export_samples(self.folder, journal=self.url)

    def records(self) -> int:
        """How many there are, all of them whole."""
        report = asyncio.run(check_server(self.url))
        assert not report.findings
        return report.records

    def effects(self) -> list[str]:
        return (self.folder / "effects").read_text().splitlines()

    def leases(self) -> list[Any]:
        """Until when each worker holds what it has."""
        rows = postgres_server.run_sql(
            self.url, "SELECT lease_until FROM holdfast.workers ORDER BY id"
        )
        return [row[0] for row in rows]


@pytest.fixture
def engine():
    with FakeEngine(mean_length=16, delay=0.02) as engine:
        yield engine


@pytest.fixture
def url():
    url = postgres_server.new_database()
    yield url
    postgres_server.drop_database(url)


@pytest.fixture
def place(tmp_path, engine, url) -> Place:
    return Place(tmp_path, engine, url, tool="read")


def until(condition, *processes) -> None:
    """Waits for it, or fails when one of the processes ends before."""
    while not condition():
        for process in processes:
            assert process.poll() is None, finished(process)
        time.sleep(0.02)


def assert_done(process) -> None:
    code, _, err = finished(process)
    assert code == 0, err


def assert_fenced(process) -> None:
    code, _, err = finished(process)
    assert code == 5, err
    assert "another worker" in err
    assert "Traceback" not in err


def test_a_worker_that_was_frozen_past_its_lease_can_write_nothing(place):
    place.hold()
    frozen = place.start("--lease", 1)
    until(lambda: place.engine.stats().held, frozen)
    frozen.send_signal(signal.SIGSTOP)
    place.let_all_go()
    try:
        assert_done(place.start("--join"))
        taken_over, records = place.export(), place.records()
    finally:
        frozen.send_signal(signal.SIGCONT)
    assert_fenced(frozen)
    assert taken_over == place.export() == place.expected
    assert place.records() == records, "the frozen worker wrote something"


def test_the_survivor_of_two_drivers_takes_over_what_the_killed_one_held(place):
    place.hold()
    killed = place.start("--join")
    until(lambda: place.engine.stats().held, killed)
    survivor = place.start("--join")
    until(lambda: place.engine.stats().requests > place.requests // 3, killed, survivor)
    killed.send_signal(signal.SIGKILL)
    finished(killed)
    place.let_all_go()
    assert_done(survivor)
    assert place.export() == place.expected
    place.records()


def _is_later(now: list[Any], then: list[Any]) -> bool:
    return all(item - other >= THREE_LEASES for item, other in zip(now, then, strict=True))


@needs_namespaces
def test_two_live_drivers_in_two_namespaces_never_take_each_others_work(tmp_path, engine, url):
    """For three leases, under one host name."""
    place = Place(tmp_path, engine, url, tool="pay")
    place.hold()
    arguments = ("--join", "--lease", LEASE)
    first = place.start(*arguments, around=IN_A_PID_NAMESPACE)
    until(lambda: engine.stats().in_flight == SAMPLES, first)
    second = place.start(*arguments, around=IN_A_PID_NAMESPACE)
    others = SAMPLES + (TASKS - 1) * (place.requests // TASKS)
    until(lambda: engine.stats().requests >= others, first, second)
    begun = place.leases()
    assert len(begun) == 2
    until(lambda: _is_later(place.leases(), begun), first, second)
    let_go(engine, first)
    assert_done(first)
    assert_done(second)
    assert place.export() == place.expected
    assert engine.stats().requests == place.requests
    assert len(place.effects()) == len(set(place.effects())) == TASKS * SAMPLES * 3
    place.records()


@pytest.mark.exhaustive
@needs_namespaces
def test_a_killed_driver_of_another_namespace_is_taken_over_when_its_lease_runs_out(place):
    place.hold()
    arguments = ("--join", "--lease", LEASE)
    killed = place.start(*arguments, around=IN_A_PID_NAMESPACE)
    until(lambda: place.engine.stats().held, killed)
    survivor = place.start(*arguments, around=IN_A_PID_NAMESPACE)
    killed.send_signal(signal.SIGKILL)
    finished(killed)
    place.let_all_go()
    assert_done(survivor)
    assert place.export() == place.expected
    place.records()


@pytest.mark.exhaustive
@pytest.mark.timeout(600)
def test_a_worker_whose_cable_to_the_database_was_pulled_can_write_nothing(place):
    """In a network namespace of its own, with another cable to the engine. TCP sends again what
    was lost when the cable is back, after the lease."""
    skip_where_there_are_none()
    with (
        NetworkNamespace("database", "engine") as network,
        CutNetwork(postgres_server.admin_url(), network.address("database")) as database,
        CutNetwork(place.engine.url, network.address("engine")) as engine,
    ):
        place.hold()
        fenced = place.start(
            "--lease", 2, url=database.url_of(place.url), policy=engine.url_of(place.engine.url),
            around=network.inside,
        )  # fmt: skip
        until(lambda: place.engine.stats().held, fenced)
        network.pull("database")
        place.let_all_go()
        assert_done(place.start("--join"))
        taken_over, records = place.export(), place.records()
        assert fenced.poll() is None, finished(fenced)
        network.plug_in("database")
        assert_fenced(fenced)
    assert taken_over == place.export() == place.expected
    assert place.records() == records, "the worker that was cut off wrote something"


@pytest.mark.exhaustive
@pytest.mark.timeout(600)
def test_a_worker_that_stays_cut_off_ends_and_says_how_to_go_on(place):
    with CutNetwork(postgres_server.admin_url()) as network:
        place.hold()
        cut_off = place.start("--lease", 2, url=f"{network.url_of(place.url)}?outage=5")
        until(lambda: place.engine.stats().held, cut_off)
        network.cut()
        place.let_all_go()
        code, _, err = finished(cut_off)
    assert code == 5, err
    assert "cannot be reached" in err
    assert "the same command goes on" in err
    assert_done(place.start("--join"))
    assert place.export() == place.expected


def test_a_worker_that_was_cut_off_past_its_lease_can_write_nothing(place):
    """What it sent meanwhile arrives when the network is whole again, and is refused."""
    with CutNetwork(postgres_server.admin_url()) as network:
        place.hold()
        fenced = place.start("--lease", 2, url=network.url_of(place.url))
        until(lambda: place.engine.stats().held, fenced)
        network.cut()
        place.let_all_go()  # It has replies now, and nowhere to write them to.
        until(lambda: network.waiting, fenced)
        assert_done(place.start("--join"))
        taken_over, records = place.export(), place.records()
        assert network.waiting, "nothing of the fenced worker's was on its way"
        network.heal()
        assert_fenced(fenced)
    assert taken_over == place.export() == place.expected
    assert place.records() == records, "the worker that was cut off wrote something"
