"""Scorers in processes of their own: what dies or hangs there costs its score, and no rollout."""

import asyncio
import os
import signal
import sys
from pathlib import Path
from subprocess import PIPE, Popen

import pytest

from holdfast.engine.scoring import pool as pools
from holdfast.engine.scoring.pool import LocalSeat, ScorerAt, ScorerPool
from holdfast.engine.scoring.process import listen, load_scorer
from holdfast.engine.scoring.wire import ScorerHome
from holdfast.engine.settings import ScoringPolicy
from holdfast.records.errors import Cause, EndpointDown, ScorerUnloadable
from holdfast.records.history import History
from holdfast.records.step import AttemptStarted, ScoringFailed
from holdfast.rollout.code.fingerprint import fingerprinted
from holdfast.rollout.processes.frames import FunctionHome
from support.engine.local_run import LocalRun, turn

SCORERS = """
import asyncio, logging, os, signal, sys, time
from pathlib import Path
from holdfast import Score, group_scorer
from holdfast.engine.scoring.engine_use import engine_use
from holdfast.records.errors import EndpointDown

HERE = Path(__file__).parent


def note(view):
    with open(HERE / "pids", "a") as file:
        file.write(f"{os.getpid()} {view.key.task}/{view.key.sample}\\n")


def pointwise(view):
    note(view)
    return Score(float(len(view.turns)), {"replies": 1.0}, details={"task": view.task.id})


@group_scorer
def relative(views):
    for view in views:
        note(view)
    return [float(view.key.sample) for view in views]


def dies_once(view):
    note(view)
    marker = HERE / f"died-{view.key.task}"
    if not marker.exists():
        marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return 1.0


def dies_over_b(view):
    note(view)
    if view.key.task == "b":
        sys.stderr.write("about to die\\n")
        os.kill(os.getpid(), signal.SIGKILL)
    return 1.0


def raises(view):
    raise KeyError(f"no rubric for {view.key.task}")


def hangs_once(view):
    note(view)
    marker = HERE / f"hung-{view.key.task}"
    if not marker.exists():
        marker.touch()
        time.sleep(600)
    return 2.0


def asks_an_engine_that_is_down(view):
    raise EndpointDown("http://judge has been down for 900 s")


def says_how_its_engine_is(view):
    log = logging.getLogger("holdfast")
    log.info("no line for people")
    log.warning("http://judge is down; waiting for it")
    log.warning("http://judge is back")
    return 1.0


class Engine:
    seconds_down = 0.0


async def waits_for_an_engine(view):
    engine = Engine()
    engine_use().count(engine)
    engine.seconds_down = 1000.0
    await asyncio.sleep(3.5)
    return engine_use().patience
"""


@pytest.fixture
def scorers(tmp_path):
    (tmp_path / "rubrics.py").write_text(SCORERS)
    return tmp_path


def home_of(place: Path, name: str, fingerprint: str = "") -> ScorerHome:
    home = FunctionHome("rubrics", str(place / "rubrics.py"))
    return ScorerHome(home=home, name=name, fingerprint=fingerprint)


def pool_of(place: Path, name: str, *, workers: int) -> ScorerPool:
    home = home_of(place, name)
    seats = [LocalSeat(place / "logs") for _ in range(workers)]
    return ScorerPool(load_scorer(home)._function, home, seats=seats)


class Rows(LocalRun):
    """A run that scores in processes of their own."""

    def __init__(self, place: Path, *names: str, **options):
        super().__init__(*names, **options)
        self.place = place
        self.rollouts = 0

    async def rollout(self, t):
        self.rollouts += 1
        await turn(t)

    def score(self, name: str, *, workers: int = 2, patience: float = 900.0, **policy):
        """What the engine ended with; no process is left."""

        async def work():
            pool = pool_of(self.place, name, workers=workers)
            settings = {"scoring": ScoringPolicy(**policy), "patience": patience}
            ending = await self.work(self.rollout, pool, **settings)
            assert all(seat.pid is None for seat in pool.seats)
            return ending

        return asyncio.run(work())

    def pids(self) -> list[tuple[int, str]]:
        lines = (self.place / "pids").read_text().splitlines()
        return [(int(pid), name) for pid, name in (line.split() for line in lines)]


def test_scores_are_those_of_the_same_scorer_in_this_process(scorers):
    rows = Rows(scorers, "a", "b", "c", samples=2)
    assert not rows.score("pointwise").stopped
    scored = [history.scored for history in rows.histories().values()]
    assert [(score.reward, score.metrics) for score in scored] == [(1.0, {"replies": 1.0})] * 6
    assert {score.details["task"] for score in scored} == {"a", "b", "c"}
    pids = {pid for pid, _ in rows.pids()}
    assert len(pids) == 2
    assert os.getpid() not in pids
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_one_pool_scores_for_several_runs_one_after_another_and_at_the_same_time(scorers):
    """As for a training and its evaluations: the last one ends its processes."""
    runs = [Rows(scorers, name) for name in "abc"]

    async def work() -> None:
        pool = pool_of(scorers, "pointwise", workers=1)
        (seat,) = pool.seats
        for rows in runs[:2]:
            await rows.work(rows.rollout, pool)
            assert seat.pid is None
        async with pool.in_use():
            await runs[2].work(runs[2].rollout, pool)
            assert seat.pid is not None
        assert seat.pid is None

    asyncio.run(work())
    rewards = [history.reward for rows in runs for history in rows.histories().values()]
    assert rewards == [1.0] * 3


def test_a_group_is_scored_together(scorers):
    rows = Rows(scorers, "a", samples=3)
    rows.score("relative")
    assert [history.reward for history in rows.histories().values()] == [0.0, 1.0, 2.0]
    assert len({pid for pid, _ in rows.pids()}) == 1


def test_a_process_that_dies_costs_no_rollout(scorers):
    rows = Rows(scorers, "a", "b", "c")
    rows.score("dies_once", tries=1)
    assert set(rows.statuses().values()) == {("COMPLETED", True)}
    assert [history.reward for history in rows.histories().values()] == [1.0] * 3
    assert rows.rollouts == 3
    assert all(len(history.attempts) == 1 for history in rows.histories().values())


def test_what_every_process_dies_of_fails_alone_and_is_the_environments(scorers):
    rows = Rows(scorers, "a", "b", "c")
    rows.score("dies_over_b", workers=1, tries=1)
    assert rows.statuses() == {
        "a/0": ("COMPLETED", True), "b/0": ("FAILED", True), "c/0": ("COMPLETED", True),
    }  # fmt: skip
    (failed,) = rows.histories()["b/0"].scoring_failures
    assert failed.cause is Cause.ENVIRONMENT
    assert "SIGKILL" in failed.message
    assert rows.rollouts == 3
    logs = "".join(path.read_text() for path in (scorers / "logs").iterdir())
    assert "about to die" in logs


def test_what_a_scorer_raises_is_its_own_bug_with_its_own_lines(scorers):
    rows = Rows(scorers, "a")
    rows.score("raises", tries=2)
    failures = rows.history().scoring_failures
    assert [failed.attempt for failed in failures] == [1, 2]
    assert all(failed.cause is Cause.CODE for failed in failures)
    assert "no rubric for a" in failures[0].message
    assert "rubrics.py" in failures[0].traceback


def test_one_that_hangs_is_replaced(scorers):
    rows = Rows(scorers, "a")
    rows.score("hangs_once", workers=1, tries=2, timeout=0.5)
    assert rows.history().reward == 2.0
    assert len({pid for pid, _ in rows.pids()}) == 2


def test_the_deadline_of_one_whose_engine_is_down_moves(scorers, monkeypatch):
    monkeypatch.setattr(pools, "SLACK_SECONDS", 2.5)
    rows = Rows(scorers, "a")
    rows.score("waits_for_an_engine", workers=1, tries=1, timeout=0.2, patience=7.0)
    assert rows.history().reward == 7.0


def test_what_a_process_says_of_its_engine_is_said_here_too(scorers, caplog):
    message = ["http://judge is down; waiting for it", "http://judge is back"]
    Rows(scorers, "a").score("says_how_its_engine_is", workers=1)
    assert [record.message for record in caplog.records if record.name == "holdfast"] == message
    logged = "".join(file.read_text() for file in (scorers / "logs").iterdir())
    assert [line for line in logged.splitlines() if line in message] == message


def test_what_several_processes_say_of_one_engine_is_said_once(caplog):
    notices = pools._Notices()
    for slot, line in ((1, "down"), (2, "down"), (1, "back"), (2, "back"), (2, "down")):
        notices.say(slot, line)
    assert caplog.messages == ["down", "back", "down"]
    notices.forget(2)
    notices.say(1, "down")
    assert caplog.messages == ["down", "back", "down", "down"], "of a process that is gone"


def test_an_engine_that_cannot_be_used_there_stops_the_run_and_fails_nothing(scorers):
    rows = Rows(scorers, "a")
    ending = rows.score("asks_an_engine_that_is_down", workers=1)
    assert isinstance(ending.fatal, EndpointDown)
    assert str(ending.fatal) == "http://judge has been down for 900 s"
    assert rows.statuses() == {"a/0": ("COMPLETED", False)}
    assert not rows.history().scoring_failures


def test_a_scorer_that_cannot_be_loaded_stops_the_run_and_fails_nothing(scorers):
    rows = Rows(scorers, "a")

    async def work():
        function = load_scorer(home_of(scorers, "pointwise"))._function
        pool = ScorerPool(function, home_of(scorers, "gone"), seats=[LocalSeat(None)])
        return await rows.work(rows.rollout, pool)

    ending = asyncio.run(work())
    assert isinstance(ending.fatal, ScorerUnloadable)
    assert "gone" in str(ending.fatal)
    assert rows.statuses() == {"a/0": ("COMPLETED", False)}


def test_one_that_listens_wants_its_token_and_the_same_code(scorers):
    home = home_of(scorers, "pointwise")
    known = fingerprinted(load_scorer(home)._function)[0]

    async def reach(token: str, fingerprint: str):
        server = await listen("127.0.0.1", 0, token="right")
        port = server.sockets[0].getsockname()[1]
        pool = ScorerPool(
            load_scorer(home)._function,
            home_of(scorers, "pointwise", fingerprint),
            seats=[ScorerAt("127.0.0.1", port, token=token)],
        )
        slot = pool._slots[0]
        try:
            await slot._open()
        finally:
            await pool.aclose()
            server.close()

    with pytest.raises(ScorerUnloadable, match="is not that of the run"):
        asyncio.run(reach("right", "pointwise@0123456789"))
    with pytest.raises(OSError, match="closed its connection"):
        asyncio.run(reach("wrong", ""))
    assert known


LISTENS = """
import asyncio
from holdfast.engine.scoring.process import listen

async def main():
    server = await listen("127.0.0.1", 0, token="right")
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


def test_one_that_listens_ends_where_its_folder_is_gone(scorers, tmp_path):
    """It could load nothing: who scores tries another, and the run does not end for it."""
    folder = tmp_path / "removed"
    folder.mkdir()
    process = Popen([sys.executable, "-c", LISTENS], cwd=folder, stdout=PIPE, text=True)
    port = int(process.stdout.readline())
    folder.rmdir()

    async def reach() -> None:
        home = home_of(scorers, "pointwise")
        seat = ScorerAt("127.0.0.1", port, token="right")
        pool = ScorerPool(load_scorer(home)._function, home, seats=[seat])
        try:
            await pool._slots[0]._open()
        finally:
            await pool.aclose()

    with process, pytest.raises(OSError, match="closed its connection"):
        asyncio.run(reach())
    assert process.returncode == 1


def test_records_of_attempts_are_as_they_were(scorers):
    rows = Rows(scorers, "a")
    rows.score("pointwise")

    async def read():
        run = await rows.journal.find_run("run")
        (row,) = await rows.journal.trajectories(run)
        return await rows.journal.history(row.id)

    records = asyncio.run(read())
    assert isinstance(records[0], AttemptStarted)
    assert not any(isinstance(record, ScoringFailed) for record in records)
    assert History(records).reward == 1.0


def test_signals_to_the_run_do_not_reach_its_scorers(scorers):
    async def session_of_a_process():
        seat = LocalSeat(None)
        _, writer = await seat.open()
        try:
            return os.getsid(seat.pid)
        finally:
            writer.close()
            await seat.end()

    assert asyncio.run(session_of_a_process()) != os.getsid(0)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
