"""SIGKILL at record boundaries, of the driver and of agents, with tools that are called through the
gateway and with worlds that come back."""

import contextlib
import os
import signal
from pathlib import Path

import pytest

from holdfast.journal.sqlite.journal import MemoryJournal
from support.crash.agent_tools_workload import REPLIES, processors
from support.crash.killable_run import KillableRun, kill_everywhere, kill_in_part, undisturbed

NAMES = ("read0", "pay0", "build0", "home0", "start0", "shell0")
FAST_POINTS = 2


@pytest.fixture(scope="module")
def killable(tmp_path_factory):
    with KillableRun(
        tmp_path_factory.mktemp("agent-tools"),
        names=NAMES,
        samples=1,
        workload="agent_tools_workload",
        replies=REPLIES,
        max_tokens=400,
        faults=(),
    ) as killable:
        yield killable


def test_two_undisturbed_runs_give_the_same_bytes(killable, baseline):
    assert undisturbed(killable).samples == baseline.samples
    assert len(baseline.samples) == len(NAMES)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("part", range(FAST_POINTS))
def test_a_driver_killed_at_a_record_boundary_changes_nothing(killable, baseline, when, part):
    kill_in_part(killable, baseline, when, part, parts=FAST_POINTS)


@pytest.mark.exhaustive
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_driver_killed_at_every_record_boundary_changes_nothing(killable, baseline, when):
    kill_everywhere(killable, baseline, when)


# --- the agent alone: its driver sees it die, and starts it again


class Murder(MemoryJournal):
    """Kills the agent when the K-th record is about to be, or has just been, recorded."""

    def __init__(self, pids: Path, boundary: int, when: str):
        super().__init__()
        self._pids, self._left, self._when = pids, boundary, when
        self.has_struck = False

    async def append_together(self, entries, *, settled=None):
        strikes = False
        for _, records, _ in entries:
            strikes = strikes or 0 < self._left <= len(records)
            self._left -= len(records)
        if strikes and self._when == "before":
            self._strike()
        await super().append_together(entries, settled=settled)
        if strikes and self._when == "after":
            self._strike()

    def _strike(self) -> None:
        # It may not have begun, or be done.
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            os.kill(int(self._pids.read_text().split()[-1]), signal.SIGKILL)
            self.has_struck = True


def performed(kind: str, folder: Path, boundary: int = 0, when: str = "after"):
    """The trajectory's rows, its history, its effects, and whether its agent was killed."""
    from support.engine.local_run import LocalRun
    from support.rollout.stage import Oracle

    folder.mkdir()
    os.environ["HOLDFAST_EFFECTS"] = str(folder / "effects")
    journal = Murder(folder / "pids", boundary, when)
    local = LocalRun(kind, policy=Oracle(acting), journal=journal)
    local.run(processors(env={"PID_FILE": str(folder / "pids")})[kind])
    effects = folder / "effects"
    did = effects.read_text().splitlines() if effects.exists() else []
    return local, did, journal.has_struck


def acting(request):
    turn = bytes(token for token in request.prompt if token < 256).count(b"assistant\n")
    call = '<tool_call>{"name": "act", "arguments": {"n": 1}}</tool_call>'
    return "so it is" if turn > 2 else call


def verify(kind: str, folder: Path, whole, boundary: int, when: str) -> bool:
    """Whether there was an agent to be killed."""
    local, did, has_struck = performed(kind, folder, boundary, when)
    history = local.history(f"{kind}/0")
    assert history.status.name == "COMPLETED", history.failures
    assert local.rows() == whole.rows()
    # An agent's end loses nothing that was done: its tools run here, and are let finish.
    assert len(did) == len(set(did)), did
    assert len(local.policy.requests) == 3, f"sampled twice: {local.policy.request_ids}"
    return has_struck


KINDS = tuple(name.rstrip("0") for name in NAMES)


@pytest.mark.parametrize("kind", ["pay", "home", "shell"])
def test_an_agent_killed_at_a_record_boundary_changes_nothing(tmp_path, kind):
    whole, did, _ = performed(kind, tmp_path / "whole")
    records = whole.history(f"{kind}/0").records
    assert len(did) == (2 if kind in ("read", "pay", "build") else 0)
    verify(kind, tmp_path / "killed", whole, records // 2, "after")


@pytest.mark.exhaustive
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("kind", KINDS)
def test_an_agent_killed_at_every_record_boundary_changes_nothing(tmp_path, kind, when):
    whole, _, _ = performed(kind, tmp_path / "whole")
    records, kills = whole.history(f"{kind}/0").records, 0
    for boundary in range(1, records + 1):
        kills += verify(kind, tmp_path / f"{when}-{boundary}", whole, boundary, when)
    assert kills
    print(f"{kills} kills {when} a record, of {records}")
