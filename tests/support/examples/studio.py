"""A run of the drawings example in this process, and every browser that it starts."""

import asyncio
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

import holdfast
from holdfast.cli.setup.user_code import load_module
from holdfast.journal.sqlite.journal import MemoryJournal
from holdfast.policy.rendering.renderer import ByteRenderer
from holdfast.records.history import History
from support.paths import EXAMPLES
from support.processes import wait_until
from support.rollout.stage import Oracle

CHROMIUM = "/usr/bin/chromium"
# Where scripts/system.sh can install it, a browser that is missing is a failure.
INSTALLABLE = os.geteuid() == 0 and shutil.which("apt-get") is not None
needs_chromium = pytest.mark.skipif(
    not Path(CHROMIUM).exists() and not INSTALLABLE, reason=f"there is no {CHROMIUM}"
)
drawings = load_module(EXAMPLES / "longer" / "drawings.py")

HEAD = '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 100 100">'
CIRCLE = f'{HEAD}<circle cx="50" cy="50" r="40" fill="red"/></svg>'
SMALLER = f'{HEAD}<circle cx="50" cy="50" r="30" fill="red"/></svg>'
GREEN = f'{HEAD}<rect width="100" height="100" fill="lime"/></svg>'


class Browsers:
    """Every browser that was started: each start goes through a script that notes its process."""

    def __init__(self, place: Path):
        self.log = place / "browsers"
        self.script = place / "chromium"
        self.log.touch()
        self.becomes(f'exec {CHROMIUM} "$@"')

    def becomes(self, command: str) -> None:
        self.script.write_text(f"#!/bin/sh\necho $$ >> {self.log}\n{command}\n")
        self.script.chmod(0o755)

    @property
    def pids(self) -> list[int]:
        return [int(line) for line in self.log.read_text().split()]

    def kill(self) -> None:
        """The browser that runs, if one does."""
        for pid in self.processes().keys() & self.pids:
            os.kill(pid, signal.SIGKILL)

    def processes(self) -> dict[int, str]:
        """What is left of them and of their helpers: each is the leader of a group."""
        return processes(lambda parent, group: group in self.pids)

    def kill_renderers(self) -> int:
        pids = [pid for pid, command in self.processes().items() if "--type=renderer" in command]
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        return len(pids)

    def assert_gone(self) -> None:
        """Nor is the driver of any left, a child of this process."""
        assert self.pids
        wait_until(lambda: not self.processes())
        assert not drivers()


def processes(wanted: Callable[[int, int], bool]) -> dict[int, str]:
    result = {}
    for entry in Path("/proc").iterdir():
        try:
            state, parent, group = (entry / "stat").read_text().rpartition(")")[2].split()[:3]
            if entry.name.isdigit() and state != "Z" and wanted(int(parent), int(group)):
                result[int(entry.name)] = (entry / "cmdline").read_text().replace("\0", " ")
        except OSError:
            continue  # It has just ended.
    return result


def drivers() -> list[int]:
    """Playwright's processes that this one has started."""
    children = processes(lambda parent, group: parent == os.getpid())
    return [pid for pid, command in children.items() if "playwright" in command]


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not holds():
            await asyncio.sleep(0.01)


class Studio:
    """One run of the example; row i of each task is answered with `answers[i]`."""

    def __init__(self, *answers: str, tasks: int = 1, wanted: str = CIRCLE):
        self.journal = MemoryJournal()
        self.samples = len(answers)
        self.policy = Oracle(lambda request: answers[int(request.id.split("/")[2])])
        self.tasks = [
            {"id": f"task-{i}", "prompt": "Draw a circle.", "ground_truth": wanted}
            for i in range(tasks)
        ]
        self.complaints: list[dict[str, object]] = []

    def run(self, processor=None, **settings) -> None:
        asyncio.run(self.work(processor, **settings))
        assert not self.complaints

    async def work(self, processor=None, **settings) -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: self.complaints.append(context))
        await holdfast.run(
            processor or drawings.Drawing(),
            tasks=self.tasks,
            samples=self.samples,
            policy=self.policy,
            journal=self.journal,
            renderer=ByteRenderer(),
            sampling=holdfast.Sampling(max_tokens=100_000),
            name="run",
            group=holdfast.GroupPolicy(refill=0),
            settings=holdfast.Settings(**{"backoff": 0.0, **settings}),
        )

    def histories(self) -> dict[str, History]:
        async def histories():
            run = await self.journal.find_run("run")
            return {
                f"{row.key.task}/{row.key.sample}": History(records)
                async for row, records in self.journal.histories(run)
            }

        return asyncio.run(histories())

    def rewards(self) -> list[float | None]:
        return [history.reward for history in self.histories().values()]
