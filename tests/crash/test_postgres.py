"""The crash suite on PostgreSQL: killed drivers, cut connections, a server that is killed."""

import random
import signal
import threading

import pytest

from holdfast.records.exit_codes import Exit
from support.crash.killable_run import (
    KillableRun,
    kill_and_resume,
    kill_everywhere,
    kill_in_part,
    undisturbed,
    verify,
)
from support.exhaustive import points
from support.journal import postgres_server
from support.journal.own_server import own_server

pytestmark = pytest.mark.skipif(
    not postgres_server.is_available(), reason="needs a PostgreSQL server"
)
FAST_POINTS = points(2, 14)
RESTARTS = points(3, 20)
ENDED = points(30, 200)
"""Connections."""


@pytest.fixture(scope="module")
def killable(tmp_path_factory):
    with KillableRun(tmp_path_factory.mktemp("crash"), on_server=True) as killable:
        yield killable


@pytest.fixture(scope="module")
def slow(tmp_path_factory):
    """The same, with an engine that takes its time."""
    with KillableRun(
        tmp_path_factory.mktemp("slow"), on_server=True, delay=points(1, 6) / 10
    ) as killable:
        yield killable


@pytest.fixture(scope="module")
def statements(killable, baseline) -> int:
    return int((killable.folder / "undisturbed" / "samples.statements").read_text())


def test_a_file_and_a_server_give_the_same_bytes(tmp_path, baseline):
    with KillableRun(tmp_path) as file:
        assert undisturbed(file).samples == baseline.samples


@pytest.mark.parametrize("when", ["before", "after", "witnessed"])
@pytest.mark.parametrize("part", range(FAST_POINTS))
def test_a_kill_at_a_record_boundary_changes_nothing(killable, baseline, when, part):
    kill_in_part(killable, baseline, when, part, parts=FAST_POINTS)


@pytest.mark.parametrize("point", ["engine.finished:13"])
def test_a_kill_between_finish_and_score_changes_nothing(killable, baseline, point):
    assert kill_and_resume(killable, baseline, point)


@pytest.mark.exhaustive
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("when", ["before", "after", "witnessed"])
def test_a_kill_at_every_record_boundary_changes_nothing(killable, baseline, when):
    kill_everywhere(killable, baseline, when)


def cut_and_go_on(killable, baseline, k: int, when: str) -> None:
    """A connection that is cut is an outage: the same process finishes, as if nothing had been."""
    place = killable.fresh(f"cut-{k}-{when}")
    assert killable.drive(place, k=k, when=when) == 0, (k, when)
    after = killable.world(place)
    verify(baseline, after, after, place, killable=killable)
    assert len(after.requests) == baseline.requests, "an outage of the journal asks no engine again"


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("part", range(FAST_POINTS))
def test_a_connection_that_is_cut_at_a_statement_changes_nothing(
    killable, baseline, statements, when, part
):
    cut_and_go_on(killable, baseline, max(1, round((part + 0.5) / FAST_POINTS * statements)), when)


@pytest.mark.exhaustive
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_connection_that_is_cut_at_any_statement_changes_nothing(tmp_path, when):
    names = ("read0", "pay0", "build0")
    with KillableRun(tmp_path, names=names, samples=1, concurrency=2, on_server=True) as small:
        baseline = undisturbed(small)
        statements = int((tmp_path / "undisturbed" / "samples.statements").read_text())
        for k in range(1, statements + 1):
            cut_and_go_on(small, baseline, k, when)
    print(f"each of {statements} statements was cut {when} it ran")


@pytest.mark.timeout(600)
def test_a_server_that_is_killed_again_and_again_changes_nothing(slow, baseline):
    """At random, inside commits, too; the driver goes on by itself."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    with own_server() as server:
        place = slow.fresh("restarts")
        (place / "url").write_text(server.url)
        done, codes, restarts = threading.Event(), [], 0
        driver = threading.Thread(target=lambda: (codes.append(slow.drive(place)), done.set()))
        driver.start()
        while restarts < RESTARTS and not done.wait(chance.uniform(0.05, 0.4)):
            server.restart(chance.choice([signal.SIGQUIT, signal.SIGINT]))
            restarts += 1
        driver.join()
        print(f"{restarts} restarts")
        assert codes == [0]
        assert restarts > 0
        after = slow.world(place)
        verify(baseline, after, after, place, killable=slow)


def test_connections_that_the_server_ends_change_nothing(slow, baseline):
    place = slow.fresh("terminated")
    done, codes, ended = threading.Event(), [], 0

    def drive() -> None:
        # On a busy machine, the server is not reached at the start: the same command goes on.
        while not codes or codes[-1] == Exit.STOPPED:
            codes.append(slow.drive(place))
        done.set()

    driver = threading.Thread(target=drive)
    driver.start()
    name = (place / "url").read_text().split("?")[0].rpartition("/")[2]
    # Not for ever: on a slow machine, no connection lives long enough to commit.
    while ended < ENDED and not done.wait(0.1):
        rows = postgres_server.run_sql(
            "postgres",
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            f"WHERE datname = '{name}' AND pid <> pg_backend_pid()",
        )
        ended += len(rows)
    driver.join()
    assert codes[-1] == 0
    assert ended > 0
    after = slow.world(place)
    verify(baseline, after, after, place, killable=slow)
