"""A small pipeline in processes of its own, for tests that kill its parts."""

import os
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

from holdfast.pipeline.status import read_status
from support.crash.training import ROLLOUT, Training, engines_of

CLOCKS = ("idle_seconds", "ready_seconds", "asked_gap_mean", "asked_gap_max")
"""What depends on the time: a step that is trained again asks no engine for its gap."""
ENGINE, ROLLOUTER, TRAINER, SUPERVISOR = "engine", "rollouter", "trainer", "supervisor"
GATEWAY, SCORER = "gateway", "scorer"
"""The gateway is in the rollouter: it is there to be killed while an agent is behind it."""
AGENT = Path(__file__).with_name("agent_rollout.py")
SCORED = ("--scorer", f"{ROLLOUT}:score", "--score-workers", "1")
"""Options of a pipeline that scores in a process of its own, and the agent's tasks in full."""
PARTS = (ENGINE, ROLLOUTER, TRAINER, SUPERVISOR, GATEWAY, SCORER)
PLACE = "HOLDFAST_TEST_PLACE"
"""In the environment of everything that a pipeline's processes start: its folder."""
COMMANDS = {GATEWAY: "short_agent.py", SCORER: "holdfast.engine.scoring.process"}
"""A word of the command lines of agents and of scorers."""


class Pipeline(Training):
    """`holdfast train --async` in `folder`."""

    def __init__(
        self, folder: Path, *, staleness: int = 0, rollout: Path = ROLLOUT, journal: str = ""
    ):
        super().__init__(folder, journal=journal, rollout=rollout)
        self._staleness = staleness

    def command(self, *more: str) -> list[str]:
        paced = ("--async", "--max-staleness", str(self._staleness), "--restarts", "100")
        return super().command(*paced, *more)

    def start(self, *more: str, crash: str = "", **env: str) -> "subprocess.Popen[str]":
        return super().start(*more, crash=crash, **env, **{PLACE: str(self.folder)})

    def metrics(self) -> list[dict[str, float]]:
        return [
            {name: value for name, value in line.items() if name not in CLOCKS}
            for line in super().metrics()
        ]

    def pid_of(self, part: str, supervisor: int) -> int | None:
        """None while there is none."""
        if part == SUPERVISOR:
            return supervisor
        if part == ENGINE:
            return next(iter(engines_of(supervisor)), None)
        if part == SCORER:
            return next(iter(self.scorers()), None)
        if part == GATEWAY:
            return self._pid(ROLLOUTER) if self.agents() else None
        return self._pid(part)

    def _pid(self, part: str) -> int | None:
        pids = [s.pid for s in read_status(self.out / "pipeline") if s.part == part]
        return pids[0] if pids and os.path.exists(f"/proc/{pids[0]}") else None

    def agents(self) -> list[int]:
        """Of the rollouter."""
        return children_of(self._pid(ROLLOUTER), COMMANDS[GATEWAY])

    def scorers(self) -> list[int]:
        """Of the rollouter and of the trainer, which evaluates."""
        parts = (self._pid(ROLLOUTER), self._pid(TRAINER))
        return [pid for part in parts for pid in children_of(part, COMMANDS[SCORER])]

    def kill(self, part: str, process: "subprocess.Popen[str]") -> bool:
        """SIGKILL; False where there is nothing to kill yet."""
        pid = self.pid_of(part, process.pid)
        if pid is None:
            return False
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            return True
        return False

    def parts_left(self) -> list[int]:
        """Processes of the parts, and agents and scorers, that live, after a moment in which they
        may end."""
        until = time.monotonic() + 60
        while True:
            pids = [status.pid for status in read_status(self.out / "pipeline")]
            left = [pid for pid in (*pids, *self._started()) if _lives(pid)]
            if not left or time.monotonic() > until:
                return left
            time.sleep(0.05)

    def _started(self) -> list[int]:
        """What the parts have started, whosever children they are by now."""
        results = []
        for path in Path("/proc").glob("[0-9]*/environ"):
            with suppress(FileNotFoundError, ProcessLookupError, PermissionError):
                if f"{PLACE}={self.folder}\0".encode() in path.read_bytes():
                    results.append(int(path.parent.name))
        return results


def children_of(pid: int | None, word: str) -> list[int]:
    """Those, and theirs, whose command line has the word."""
    results = []
    with suppress(FileNotFoundError, ProcessLookupError):
        for path in Path(f"/proc/{pid}/task").glob("*/children"):
            for child in map(int, path.read_text().split()):
                if word in Path(f"/proc/{child}/cmdline").read_text():
                    results.append(child)
                results += children_of(child, word)
    return results


def read_until(process: "subprocess.Popen[str]", beginning: str) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith(beginning):
            return
    raise AssertionError(f"it ended before {beginning!r}: {process.communicate()}")


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
