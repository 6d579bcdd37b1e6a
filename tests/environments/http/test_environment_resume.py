"""A server of environments is killed under its clients; the trajectories do not notice."""

import asyncio
import os
import tempfile
from pathlib import Path

import pytest

from holdfast.environments.http.environment import EnvironmentEndpoint, HttpEnvironment
from support.engine.local_run import LocalRun
from support.environments.http_servers import Line, ServerProcess, serving
from support.environments.http_worlds import Ledger
from support.rollout.stage import Oracle, TrajectoryUnderTest

HOLD = Path(tempfile.gettempdir()) / f"holdfast-hold-{os.getpid()}"
HELD = f"hold {HOLD}"
ACTIONS = ("add 1", "add 2", HELD, "add 4")
PATIENCE = {"max_retry": 20, "backoff": 0.1}
LEVELS = {"replay": "Ledger", "snapshot": "KeptLedger"}


class Killer:
    """Kills the server and starts it again, once, before or during the step of turn `at`."""

    def __init__(self, server: ServerProcess, *, at: int, log: Path | None = None):
        """With `log`, during: when `HELD` has begun, and before it ends."""
        self._server = server
        self._at = at if at >= 0 else None
        self._log = log
        self._job: asyncio.Task[None] | None = None

    async def strike(self, turn: int) -> None:
        if turn != self._at:
            return
        self._at = None
        if self._log is None:
            await asyncio.to_thread(self._server.restart)
        else:
            HOLD.touch()
            self._job = asyncio.create_task(self._kill_when_held(self._log))

    async def _kill_when_held(self, log: Path) -> None:
        while HELD not in log.read_text():
            await asyncio.sleep(0.01)
        await asyncio.to_thread(self._server.kill)
        HOLD.unlink()
        await asyncio.to_thread(self._server.start)


def subject(server, level, log, *, at=-1, during=False):
    """What is recorded of a trajectory, and what was really done."""
    killer = Killer(server, at=at, log=log if during else None)

    async def solve(t):
        environment = HttpEnvironment(server.url, task={"log": str(log)}, recovery=level)
        episode = await t.env(environment, seed=5)
        t.add(episode.observation)
        for turn in range(len(ACTIONS)):
            await t.generate()
            await killer.strike(turn)
            t.add(await episode.step(ACTIONS[turn]))

    local = LocalRun()
    local.run(solve, **PATIENCE)
    history = local.history()
    assert history.status.name == "COMPLETED"
    seen = [(step.action, step.observation, step.reward) for step in history.environment_steps]
    return seen, [failure.type for failure in history.failures], log.read_text().splitlines()


@pytest.fixture(scope="module", params=LEVELS)
def undisturbed(request, tmp_path_factory):
    level = request.param
    with ServerProcess(LEVELS[level]) as server:
        log = tmp_path_factory.mktemp("undisturbed") / "log"
        yield level, server, subject(server, level, log)


@pytest.mark.parametrize("at", [0, 1, 3])
def test_a_server_killed_between_two_steps_costs_an_attempt_and_no_data(undisturbed, at, tmp_path):
    level, server, (expected, failures, _) = undisturbed
    seen, lost, done = subject(server, level, tmp_path / "log", at=at)
    assert (failures, lost) == ([], ["LostSession"])
    assert seen == expected
    steps = [f"step {action}" for action in ACTIONS]
    if level == "replay":
        assert done == ["reset 5", *steps[:at], "reset 5", *steps, "close"]
    else:
        # What came before the snapshot is not done again.
        assert [line for line in done if line.startswith("step")] == steps
        assert ("restore" in done) == (at > 0)


def test_a_server_killed_during_a_step_costs_an_attempt_and_no_data(undisturbed, tmp_path):
    level, server, (expected, _, _) = undisturbed
    seen, lost, done = subject(server, level, tmp_path / "log", at=2, during=True)
    # One attempt, or more if the server takes long to start.
    assert lost
    assert seen == expected
    assert done.count(f"step {HELD}") == 2


def test_nothing_is_asked_of_the_server_on_replay(tmp_path):
    async def run():
        stage = TrajectoryUnderTest()
        with ServerProcess("Ledger") as server:
            endpoint = await EnvironmentEndpoint.describe(server.url)

            async def solve(t):
                episode = await t.env(endpoint.environment(), seed=5)
                add = episode.tools[0]
                messages = [await t.tool(add.call(amount=3), *episode.tools)]
                messages += [await t.tool(add.call(amount=300), *episode.tools)]
                t.add(await episode.step("add 1"))
                return episode.observation.text, [
                    (message.content, message.error) for message in messages
                ]

            first = await stage.perform(solve)
        # The server is gone, and its answers are there.
        return first, await stage.perform(solve)

    first, second = asyncio.run(run())
    assert first == second == ("total 9", [("total 8", ""), ("more than 100", "ToolSaysNo")])


def test_a_lost_answer_is_no_failure_of_a_trajectory(tmp_path):
    log = tmp_path / "log"

    async def scenario(server):
        async with Line(server.url).open() as line:

            async def solve(t):
                episode = await t.env(HttpEnvironment(line.url, task={"log": str(log)}), seed=1)
                line.lose = [b"/step"]
                await episode.step("add 1")
                await t.generate()
                await episode.step("add 1")

            local = LocalRun()
            await local.work(solve)
            local.assert_nothing_left()
            return list((await local._histories()).values())

    (history,) = serving(scenario, Ledger)
    assert (history.status.name, history.failures) == ("COMPLETED", [])
    assert history.environment_steps[-1].observation == "total 3"
    assert log.read_text().splitlines() == ["reset 1", "step add 1", "step add 1", "close"]


def test_a_dozen_trajectories_outlive_their_server():
    names = [f"t{number}" for number in range(12)]
    with ServerProcess("Ledger") as server:
        killer = Killer(server, at=0)

        async def solve(t):
            number = int(t.task.id[1:])
            episode = await t.env(HttpEnvironment(server.url, task={"row": number}), seed=number)
            for turn in range(3):
                await t.generate()
                await killer.strike(turn if number == 5 else -2)
                t.add(await episode.step(f"add {turn}"))

        local = LocalRun(*names, policy=Oracle())
        local.run(solve, **PATIENCE)
    histories = local.histories()
    assert {history.status.name for history in histories.values()} == {"COMPLETED"}
    ends = {name: history.environment_steps[-1].observation for name, history in histories.items()}
    assert ends == {f"t{number}/0": f"total {number + 3}" for number in range(12)}
    assert sum(len(history.failures) for history in histories.values()) >= 1
