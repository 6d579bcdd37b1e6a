"""A run on a simulated cluster, as a user starts it, and everything about it that can be killed."""

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec

from holdfast.engine.export.export import What, rows
from holdfast.journal import opened_journal
from holdfast.journal.sql.find_run import run_named
from support.processes import is_alive

HERE = Path(__file__).parent


class ClusterCommandLine:
    """A folder with the workload, and the commands of a user in it."""

    def __init__(self, place: Path, *, tasks: int, journal: str, engine):
        self.place, self.journal, self.engine = place, journal, engine
        self.notes = place / "notes"
        self.code = place / "code"
        self.notes.mkdir(parents=True)
        self.code.mkdir()
        shutil.copy(HERE / "workload.py", self.code / "workload.py")
        lines = [json.dumps({"id": f"t{n}", "prompt": f"do {n}"}) for n in range(tasks)]
        (self.code / "tasks.jsonl").write_text("".join(f"{line}\n" for line in lines))

    def start(self, *arguments: object, **env: str) -> "subprocess.Popen[str]":
        environment = os.environ | {
            "HOLDFAST_LOGS": str(self.place / "logs"),
            "HOLDFAST_WORKLOAD_NOTES": str(self.notes),
        }
        return subprocess.Popen(
            [sys.executable, "-m", "holdfast", *(str(word) for word in arguments)],
            cwd=self.code,
            env=environment | env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def arguments(self, run: str, *more: object, journal: str = "") -> list[object]:
        return [
            "run", "workload.py", "--tasks", "tasks.jsonl", "--samples", 2, "--run", run,
            "--policy", self.engine.url, "--model", self.engine.model, "--seed", 7, "--quiet",
            "--journal", journal or self.journal, "--lease", 8, *more,
        ]  # fmt: skip

    def finished(self, process: "subprocess.Popen[str]", *, code: int = 0) -> tuple[str, str]:
        out, err = process.communicate(timeout=600)
        assert process.returncode == code, (process.returncode, out, err, self.logs())
        return out, err

    def export(self, run: str, *, journal: str = "") -> bytes:
        """Its samples, as they would be written to a file."""
        return asyncio.run(self._export(run, journal or self.journal))

    async def _export(self, run: str, where: str) -> bytes:
        async with opened_journal(where) as journal:
            stored_run = await run_named(journal, run)
            samples = [row async for row in rows(journal, stored_run, What.SAMPLES)]
        return b"\n".join(map(msgspec.json.encode, samples)).replace(run.encode(), b"RUN")

    def pids(self, what: str) -> list[int]:
        """Processes that have rolled out, or scored, and still live."""
        results = [int(path.name.split("-")[1]) for path in self.notes.glob(f"{what}-*")]
        return [pid for pid in results if is_alive(pid)]

    def gateways(self, run: str) -> list[int]:
        """The processes of a run's gateways on the nodes."""
        results = []
        for entry in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                arguments = entry.read_bytes().split(b"\0")
            except OSError:
                continue
            if b"--as-node" in arguments and run.encode() in arguments:
                results.append(int(entry.parent.name))
        return results

    def until(self, what: str, count: int, *, seconds: float = 240) -> list[int]:
        deadline = time.monotonic() + seconds
        while len(process_ids := self.pids(what)) < count:
            assert time.monotonic() < deadline, (process_ids, self.logs())
            time.sleep(0.05)
        return process_ids

    def noted(self, what: str) -> list[str]:
        """Keys of trajectories that were begun, or scored, by any process."""
        return [
            line for path in self.notes.glob(f"{what}-*") for line in path.read_text().splitlines()
        ]

    def logs(self) -> str:
        return "\n".join(
            f"{path.name}: {path.read_text()[-1500:]}"
            for path in (self.place / "logs").glob("*/*.log")
            if path.stat().st_size
        )


def ancestors(pid: int) -> list[int]:
    """Its parent, and so on, as long as it lives."""
    pids: list[int] = []
    while pid > 1:
        try:
            stat = Path(f"/proc/{pid}/stat").read_text()
        except OSError:
            break
        pid = int(stat.rpartition(")")[2].split()[1])
        pids.append(pid)
    return pids


def kill(pid: int) -> bool:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True
