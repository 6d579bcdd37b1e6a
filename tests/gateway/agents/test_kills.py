"""What dies beside the driver: the engine in the middle of a call, the agent before, during and
after one. A real engine process, a journal on disk, agents that are programs."""

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from holdfast.engine.export.export import What, rows
from holdfast.engine.open_run import open_run
from holdfast.engine.running.engine import Engine
from holdfast.engine.settings import Settings
from holdfast.gateway.agents.subprocess import BlackBoxRolloutProcessor
from holdfast.journal.sqlite.journal import SqliteJournal
from holdfast.policy.client.replicas import EnginePolicy
from holdfast.policy.rendering.renderer import ByteRenderer
from holdfast.policy.retry import RetryPolicy
from holdfast.records.history import History
from holdfast.records.message import user
from holdfast.records.run import RunSpec
from holdfast.records.sampling import Sampling
from holdfast.records.task import Task, tasks_digest
from holdfast.testing import FakeEngine, Fault, FaultKind
from support.gateway.gateway_process import until
from support.paths import AGENT_PROGRAMS

ADDING = '<tool_call>{"name": "add", "arguments": {"a": {n}, "b": {n}}}</tool_call>'
REPLIES = (*(f"@{turn} so {{n}} {ADDING}" for turn in range(3)), "@3 it is {n}")
CALLS = 4
WIRES = {"json": ("curl_loop", "--urllib"), "stream": ("curl_loop", "--stream")}
TASKS = [Task(id="a", messages=(user("do a"),))]


class Field:
    """One trajectory in a journal on disk, and the engine that all experiments share."""

    def __init__(self, place: Path, engine: FakeEngine, wire: str):
        self.place, self.engine = place, engine
        name, *args = WIRES[wire]
        self.command = [sys.executable, str(AGENT_PROGRAMS / f"{name}.py"), *args]
        self.env = {"PID_FILE": str(place / "pids")}
        self.samples: list[dict[str, object]] = []
        self.history = History()
        engine.reset()
        engine.set_faults()

    def run(self, *faults: Fault, beside=None, patience: float = 30, **env: str) -> "Field":
        """Runs it to its end, with `beside` going on at the same time."""
        self.engine.set_faults(*faults)
        self.env |= env
        asyncio.run(self._both(beside, patience))
        assert self.history.status.name == "COMPLETED", self.history.failures
        return self

    async def _both(self, beside, patience: float) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._drive(patience))
            if beside is not None:
                group.create_task(asyncio.to_thread(beside, self))

    async def _drive(self, patience: float) -> None:
        spec = RunSpec(
            name="kills",
            samples=1,
            model="fake",
            sampling=Sampling(max_tokens=300),
            seed=7,
            rollout="solve",
            scorer="",
            renderer="bytes",
            tasks=tasks_digest(TASKS),
        )
        async with self._open(patience) as (journal, policy):
            run = await open_run(journal, spec, TASKS)
            engine = Engine(
                run=run,
                journal=journal,
                policy=policy,
                renderer=ByteRenderer(),
                processor=BlackBoxRolloutProcessor(self.command, env=self.env),
                scorer=None,
                settings=Settings(backoff=0.01),
            )
            ending = await engine.work()
            assert ending.fatal is None
            self.samples = [row async for row in rows(journal, run, What.SAMPLES)]
            async for _, records in journal.histories(run):
                self.history = History(records)

    @asynccontextmanager
    async def _open(self, patience: float) -> AsyncIterator[tuple[SqliteJournal, EnginePolicy]]:
        retry = RetryPolicy(tries=5, deadline=60, try_timeout=20, base=0.01, cap=0.05)
        policy = EnginePolicy(self.engine.url, "fake", retry=retry, patience=patience)
        journal = SqliteJournal(self.place / "journal.db")
        try:
            await policy.check()
            yield journal, policy
        finally:
            await journal.close()
            await policy.aclose()

    # --- what was seen

    @property
    def exported(self) -> str:
        return json.dumps(self.samples, default=str)

    @property
    def pids(self) -> list[int]:
        return [int(line) for line in Path(self.env["PID_FILE"]).read_text().split()]

    def wait_until_held(self) -> None:
        deadline = time.monotonic() + 30
        while not self.engine.stats().held:
            assert time.monotonic() < deadline, "no generation is held"
            time.sleep(0.01)


@pytest.fixture(scope="module")
def engine():
    with FakeEngine(replies=REPLIES) as engine:
        yield engine


@pytest.fixture(scope="module")
def calm(engine, tmp_path_factory):
    """What an undisturbed run exports, on each wire."""
    result = {}
    for wire in WIRES:
        field = Field(tmp_path_factory.mktemp("calm"), engine, wire).run()
        assert len(field.history.generations) == len(engine.requests()) == CALLS
        assert len(field.samples) == 1
        result[wire] = field.exported
    return result


@pytest.fixture(params=WIRES)
def field(request, engine, tmp_path):
    return Field(tmp_path, engine, request.param)


@pytest.fixture
def expected(field, calm):
    return calm["stream" if "--stream" in field.command else "json"]


def assert_nothing_was_sampled_twice(field: Field, *, but: int = 0) -> None:
    """`but`: how often a generation was under way when it was lost."""
    ids = [item for item, _ in field.engine.requests()]
    assert len(ids) == CALLS + but
    assert len(set(ids)) == CALLS
    assert not field.history.forks


def test_what_is_streamed_and_what_is_not_is_the_same_data(calm):
    assert calm["json"] == calm["stream"]


# --- the engine


@pytest.mark.parametrize(
    "kind",
    [
        FaultKind.ERROR_500,
        FaultKind.UNAVAILABLE,
        FaultKind.RESET_BEFORE,
        FaultKind.RESET_AFTER,
        FaultKind.TRUNCATED_BODY,
        FaultKind.NAN_LOGPROB,
    ],
)
def test_an_engine_that_fails_in_a_call_is_nothing_that_an_agent_notices(field, expected, kind):
    field.run(Fault(kind))
    assert field.exported == expected
    assert len(field.pids) == 1
    assert_nothing_was_sampled_twice(field, but=CALLS)


@pytest.mark.parametrize("call", [0, 2, 3])
def test_an_engine_killed_in_a_call_and_started_again_goes_on(field, expected, call):
    before = []

    def kill(field: Field) -> None:
        field.wait_until_held()
        before.extend(item for item, _ in field.engine.requests())
        field.engine.set_faults()
        field.engine.restart()

    field.run(Fault(FaultKind.HOLD, matching=f"/{call}.0.0"), beside=kill)
    assert field.exported == expected
    assert len(field.pids) == 1
    after = [item for item, _ in field.engine.requests()]
    # Only the call that was under way is asked for again.
    assert after[0] == before[-1]
    assert len(before) == call + 1
    assert len(after) == CALLS - call


def test_an_engine_that_stays_away_costs_an_attempt_and_no_call_that_was_answered(field, expected):
    """Its agent is told of it and ended; the next one is given back what was durable."""
    faults = (Fault(FaultKind.ERROR_500, matching="/2.0.0", times=5),)
    field.run(*faults, patience=1)
    assert field.exported == expected
    assert [failure.cause.value for failure in field.history.failures] == ["infrastructure"]
    assert len(field.pids) == 2
    assert_nothing_was_sampled_twice(field, but=5)


# --- the agent


@pytest.mark.parametrize("phase", ["before", "after", "stream"])
@pytest.mark.parametrize("call", [0, 1, 3])
def test_an_agent_killed_beside_its_call_is_given_back_its_past(field, expected, call, phase):
    if phase == "stream" and "--stream" not in field.command:
        phase = "after"
    flag = field.place / "crashed"
    field.run(CRASH_AT=str(call), CRASH_ONCE=str(flag), CRASH_PHASE=phase)
    assert flag.exists()
    assert field.exported == expected
    assert len(field.pids) == 2
    assert_nothing_was_sampled_twice(field)


@pytest.mark.parametrize("call", [0, 2])
def test_an_agent_killed_while_it_waits_is_given_the_answer_that_it_waited_for(
    field, expected, call
):
    def kill(field: Field) -> None:
        field.wait_until_held()
        os.kill(field.pids[-1], signal.SIGKILL)
        until(lambda: not Path(f"/proc/{field.pids[0]}").exists(), what="its driver's notice")
        field.engine.release()

    field.run(Fault(FaultKind.HOLD, matching=f"/{call}.0.0"), beside=kill)
    assert field.exported == expected
    assert len(field.pids) == 2
    assert_nothing_was_sampled_twice(field)


def test_an_agent_that_is_stopped_and_goes_on_is_only_slow(field, expected):
    def halt(field: Field) -> None:
        field.wait_until_held()
        os.kill(field.pids[-1], signal.SIGSTOP)
        field.engine.release()
        time.sleep(0.3)
        os.kill(field.pids[-1], signal.SIGCONT)

    field.run(Fault(FaultKind.HOLD, matching="/1.0.0"), beside=halt)
    assert field.exported == expected
    assert len(field.pids) == 1
    assert_nothing_was_sampled_twice(field)
