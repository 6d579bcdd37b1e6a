"""Runs a whole run in this process and shows what became of it."""

import asyncio
import gc
from collections.abc import Sequence

from holdfast.engine.export.export import What, rows
from holdfast.engine.open_run import open_run
from holdfast.engine.report import RunReport, build
from holdfast.engine.running.engine import Ending, Engine
from holdfast.engine.scoring.scorer import Scorer
from holdfast.engine.settings import Settings
from holdfast.engine.stop import Stop
from holdfast.journal.sql.journal import Journal
from holdfast.journal.sqlite.journal import MemoryJournal
from holdfast.records.group import GroupPolicy
from holdfast.records.history import History
from holdfast.records.message import user
from holdfast.records.run import RunSpec
from holdfast.records.sampling import Sampling
from holdfast.records.task import Task, tasks_digest
from holdfast.rollout.processors.processor import as_processor
from support.rollout.renderers import BeginsEmpty
from support.rollout.stage import Oracle


class LocalRun:
    """One run in one journal. `work` is one process that works on it."""

    def __init__(
        self,
        *names: str,
        samples: int = 1,
        policy=None,
        journal: Journal | None = None,
        group: GroupPolicy | None = None,
        seed: int | None = 1,
        sampling: Sampling | None = None,
    ):
        self.policy = policy or Oracle()
        self.renderer = BeginsEmpty()
        self.journal = journal or MemoryJournal()
        self.tasks = [Task(id=name, messages=(user(f"do {name}"),)) for name in names or ("a",)]
        self.spec = RunSpec(
            name="run",
            samples=samples,
            model="oracle",
            sampling=sampling or Sampling(),
            seed=seed,
            rollout="solve",
            scorer="",
            renderer="bytes",
            tasks=tasks_digest(self.tasks),
            group=group or GroupPolicy(),
        )
        self.stop: Stop | None = None
        self.complaints: list[dict[str, object]] = []
        self.left: set[asyncio.Task[object]] = set()

    async def engine(self, rollout, scorer=None, *, reopen_failed=False, **settings) -> Engine:
        run = await open_run(self.journal, self.spec, self.tasks)
        self.stop = Stop()
        settings = {"backoff": 0.0, "grace": 5.0, **settings}
        return Engine(
            run=run,
            journal=self.journal,
            policy=self.policy,
            renderer=self.renderer,
            processor=as_processor(rollout),
            scorer=scorer if scorer is None or isinstance(scorer, Scorer) else Scorer(scorer),
            settings=Settings(**settings),
            stop=self.stop,
            reopen_failed=reopen_failed,
        )

    async def work(self, rollout, scorer=None, **options) -> Ending:
        """Works, and looks at what is left in the loop afterwards."""
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: self.complaints.append(context))
        before = asyncio.all_tasks()
        try:
            return await (await self.engine(rollout, scorer, **options)).work()
        finally:
            self.left = asyncio.all_tasks() - before
            gc.collect()
            await asyncio.sleep(0)

    def run(self, rollout, scorer=None, **options) -> Ending:
        ending = asyncio.run(self.work(rollout, scorer, **options))
        self.assert_nothing_left()
        return ending

    def assert_nothing_left(self) -> None:
        assert not self.left
        assert not self.complaints

    # --- what became of it

    def histories(self) -> dict[str, History]:
        return asyncio.run(self._histories())

    async def _histories(self) -> dict[str, History]:
        run = await self.journal.find_run("run")
        return {
            f"{row.key.task}/{row.key.sample}": History(records)
            async for row, records in self.journal.histories(run)
        }

    def history(self, name: str = "a/0") -> History:
        return self.histories()[name]

    def statuses(self) -> dict[str, tuple[str, bool]]:
        async def rows_of_run():
            run = await self.journal.find_run("run")
            return await self.journal.trajectories(run)

        return {
            f"{row.key.task}/{row.key.sample}": (row.status.name, row.settled)
            for row in asyncio.run(rows_of_run())
        }

    def report(self) -> RunReport:
        async def built():
            return await build(self.journal, await self.journal.find_run("run"))

        return asyncio.run(built())

    def rows(self, what: What = What.SAMPLES, **options) -> Sequence[dict[str, object]]:
        async def listed():
            run = await self.journal.find_run("run")
            return [row async for row in rows(self.journal, run, what, **options)]

        return asyncio.run(listed())


async def turn(t, text: str = "go"):
    t.add(text)
    return await t.generate()
