"""Everything is killed at random while a run goes on, on a real engine (`make worlds`).

Drivers, the engine, containerd and single containers get SIGKILL. The exported samples are those of
a calm run, and no container, image, volume or network is left.

    KILLS, KILLS_TRAJECTORIES, KILLS_TURNS, KILLS_SEED: how many, of what size, in which order
"""

import asyncio
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.testing import FakeEngine
from holdfast.worlds.docker.address import container_engine
from holdfast.worlds.docker.api import ContainerApi
from holdfast.worlds.docker.provider import ContainerProvider
from support.paths import SUPPORT

REAL = os.environ.get("HOLDFAST_WORLDS", "")
START = os.environ.get("HOLDFAST_WORLDS_START", "")
"""The command that starts the engine, which writes its process id into `pid` beside its socket."""
RUN = "kills"
KILLS = int(os.environ.get("KILLS", "12"))
TRAJECTORIES = int(os.environ.get("KILLS_TRAJECTORIES", "16"))
STARTS = 5
ENGINE_SECONDS = 20.0
TARGETS = {"driver": 3, "worker": 2, "containers": 3, "dockerd": 1, "containerd": 1}
"""What is killed, by how often it is."""
pytestmark = pytest.mark.skipif(not (REAL and START), reason="make worlds starts a real engine")


def left() -> dict[str, list[str]]:
    """Returns what the engine has of Holdfast's."""

    async def listed() -> dict[str, list[str]]:
        provider, api = (
            ContainerProvider("docker", REAL),
            ContainerApi(container_engine("docker", REAL)),
        )
        try:
            volumes = (await api.get("/volumes"))["Volumes"] or []
            networks = [each["Name"] for each in await api.get("/networks")]
            dangling = await api.get("/images/json", filters={"dangling": ["true"]})
            return {
                "containers": [
                    info.handle for info in await provider.worlds() if info.label.run == RUN
                ],
                "images": [
                    info.handle for info in await provider.snapshots() if info.label.run == RUN
                ]
                + [each["Id"] for each in dangling],
                "volumes": [each["Name"] for each in volumes],
                "networks": sorted(set(networks) - {"none", "host", "bridge"}),
            }
        finally:
            await api.close()
            await provider.close()

    return asyncio.run(listed())


class Killing:
    """One run, whose processes are started again after each kill."""

    def __init__(self, folder: Path, engine: FakeEngine, tasks: Path):
        self.folder = folder
        self.outside = folder / "outside"
        self._command = [
            *(sys.executable, "-m", "holdfast", "run", str(SUPPORT / "worlds_kills_rollout.py")),
            *("--tasks", str(tasks), "--run", RUN, "--seed", "1"),
            *("--policy", engine.url, "--model", "fake"),
            *("--journal", str(folder / "journal.db"), "--concurrency", "12", "--worlds", "4"),
            *("--lease", "5", "--max-retry", "100", "--quiet", "--patience", "120"),
        ]
        self._env = os.environ | {"DOCKER_HOST": REAL, "KILLS_OUTSIDE": str(self.outside)}
        self.drivers: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> "Killing":
        self.folder.mkdir()
        self._log = (self.folder / "log").open("ab")
        return self

    def __exit__(self, *_: object) -> None:
        for driver in self.drivers.values():
            driver.kill()
            driver.wait()
        self._log.close()

    def start(self, name: str, *more: str) -> None:
        self.drivers[name] = subprocess.Popen(
            [*self._command, *more], env=self._env, stdout=self._log, stderr=self._log
        )

    def export(self) -> list[str]:
        out = self.folder / "samples.jsonl"
        subprocess.run(
            [
                *(sys.executable, "-m", "holdfast", "export", RUN, "--what", "samples"),
                *("--journal", str(self.folder / "journal.db"), "--out", str(out), "--force"),
            ],
            check=True,
            capture_output=True,
        )
        lines = out.read_text().splitlines()
        return [line for line in lines if '"task":"pay' not in line]

    def run_to_end(self) -> None:
        for driver in self.drivers.values():
            driver.kill()
            driver.wait()
        self.start("driver")
        assert self.drivers["driver"].wait() == 0, (self.folder / "log").read_text()[-3000:]

    @property
    def is_over(self) -> bool:
        return self.drivers["driver"].poll() == 0


def end(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def docker(*arguments: str) -> str:
    """Returns the output of Docker's own client, or "" if the engine does not answer in time."""
    try:
        return subprocess.run(
            ["docker", "-H", REAL, *arguments],
            capture_output=True, text=True, check=False, timeout=ENGINE_SECONDS,
        ).stdout  # fmt: skip
    except subprocess.TimeoutExpired:
        return ""


def kill_containers(chosen: random.Random) -> None:
    """Kills the first processes of some containers, as a machine without memory would."""
    names = docker("ps", "-q").split()
    for name in chosen.sample(names, min(3, len(names))):
        pid = docker("inspect", "-f", "{{.State.Pid}}", name).strip()
        if pid.isdigit() and pid != "0":
            end(int(pid))


def pid_file() -> Path:
    return Path(REAL.removeprefix("unix://")).parent / "pid"


def engine_pid() -> int:
    return int(pid_file().read_text())


def kill_dockerd(log: Path) -> None:
    end(engine_pid())
    # `dockerd` refuses to start while a process has the id in this file, which may be a new one.
    pid_file().unlink()
    # On a busy machine, `dockerd` may give up because its containerd is slow.
    for _ in range(STARTS):
        with log.open("ab") as out:
            subprocess.run(["setsid", "--fork", START], stdout=out, stderr=out, check=True)
        if until(lambda: answers() or not is_starting(), 120) and answers():
            return
    raise AssertionError("the engine does not start again")


def kill_containerd() -> None:
    """Kills the engine's containerd, which the engine starts again."""
    path = Path(f"/proc/{engine_pid()}/task/{engine_pid()}/children")
    children = [int(pid) for pid in path.read_text().split()]
    for pid in children:
        with contextlib.suppress(FileNotFoundError):
            if Path(f"/proc/{pid}/comm").read_text().strip() == "containerd":
                end(pid)


def answers() -> bool:
    """Returns whether the engine answers for each of its containers."""
    names = docker("ps", "-aq").split()
    return bool(docker("version", "-f", "{{.Server.Version}}").strip()) and all(
        docker("inspect", "-f", "{{.Id}}", name) for name in names[:1]
    )


def is_starting() -> bool:
    """Returns whether a process has the id in the engine's file."""
    try:
        return Path(f"/proc/{engine_pid()}").exists()
    except (FileNotFoundError, ValueError):
        return False


def until(condition: Callable[[], bool], seconds: float) -> bool:
    """Waits until the condition holds, and returns whether it does in time. Looks again after a
    second at the earliest, so that what was just started has begun."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        time.sleep(1)
        if condition():
            return True
    return False


@pytest.mark.timeout(7200)
def test_kills_of_everything_change_no_sample_and_leave_nothing(tmp_path: Path) -> None:
    tasks = tmp_path / "tasks.jsonl"
    # An interrupted payment is no result, so only the trajectories without payments are compared.
    names = [f"{'pay' if number % 8 == 0 else 't'}{number}" for number in range(TRAJECTORIES)]
    rows = [{"id": name, "prompt": f"do {name}"} for name in names]
    tasks.write_text("".join(json.dumps(row) + "\n" for row in rows))
    seed = int(os.environ.get("KILLS_SEED", str(time.time_ns())))
    print(f"seed {seed}")
    chosen, done, before = random.Random(seed), Counter[str](), left()
    with FakeEngine(mean_length=8) as engine:
        with Killing(tmp_path / "calm", engine, tasks) as calm:
            begun = time.monotonic()
            calm.run_to_end()
            print(f"the calm run took {time.monotonic() - begun:.0f} s")
            expected = calm.export()
        assert left() == before
        with Killing(tmp_path / "killed", engine, tasks) as killed:
            begun = time.monotonic()
            killed.start("driver")
            killed.start("worker", "--join")
            while sum(done.values()) < KILLS and not killed.is_over:
                time.sleep(chosen.uniform(0.5, 6))
                target = chosen.choices(list(TARGETS), weights=list(TARGETS.values()))[0]
                if target in killed.drivers:
                    killed.drivers[target].kill()
                elif target == "containers":
                    kill_containers(chosen)
                elif target == "dockerd":
                    kill_dockerd(tmp_path / "dockerd.log")
                else:
                    kill_containerd()
                done[target] += 1
                if target == "containerd":
                    # An engine that lost its containerd may hang until it is started again.
                    time.sleep(chosen.uniform(0.5, 6))
                    kill_dockerd(tmp_path / "dockerd.log")
                    done["dockerd"] += 1
                for name, more in (("driver", ()), ("worker", ("--join",))):
                    if killed.drivers[name].poll() not in (None, 0):
                        killed.start(name, *more)
            kill_dockerd(tmp_path / "dockerd.log")
            killed.run_to_end()
            print(f"{sum(done.values())} kills {dict(done)} in {time.monotonic() - begun:.0f} s")
            assert killed.export() == expected
            payments = Counter(killed.outside.read_text().split())
        assert left() == before
        assert [order for order, count in payments.items() if count > 1] == []
