"""`holdfast train --cluster`: trains in this process, with rollouts on a cluster.

The trainer admits tasks, trains and publishes weights as in any training. Workers on the nodes
lease the groups and sample from the engines of `--policy`, once these have a published version.
"""

import argparse
import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from holdfast.cli.commands import run as running
from holdfast.cli.commands.cluster import checks
from holdfast.cli.commands.cluster.driver import OVER, Driver
from holdfast.cli.setup.user_code import split
from holdfast.cluster.connection import connected
from holdfast.engine.running.run_plan import RunPlan
from holdfast.engine.stop import Stop
from holdfast.journal import opened_journal
from holdfast.journal.sql.journal import Journal
from holdfast.journal.types import RunProgress
from holdfast.records.errors import HoldfastError, UsageError
from holdfast.records.run import Run

if TYPE_CHECKING:
    from holdfast.training.run.train import Assembly

LOOK_SECONDS = 0.2


def check(args: argparse.Namespace) -> checks.ClusterPlan:
    """Checks the options of the command. Raises `UsageError`."""
    if args.only == "rollouter":
        raise UsageError("--only rollouter with --cluster: the cluster's workers roll out")
    if args.is_async and args.only is None:
        raise UsageError(
            "--async with --cluster: add --only trainer; the cluster's workers are the rollouter"
        )
    if args.max_tokens_total is not None:
        raise UsageError(
            "--max-tokens-total with --cluster: the trainer cannot hold workers on other machines "
            "to it; leave one of the two out"
        )
    return checks.check(args, split(args.rollout)[0])


@asynccontextmanager
async def rollouts(
    args: argparse.Namespace, plan: RunPlan, stop: Stop, *, on_connected: Callable[[], None]
) -> "AsyncIterator[Assembly | None]":
    """Runs workers on the cluster while the block trains. Without a cluster, only yields None.

    If the workers fail, `stop` ends the training. If their error is not a `HoldfastError`, it is
    also raised after the block, unless the block raised an error itself.
    """
    if args.cluster is None:
        yield None
        return
    from holdfast.training.run.train import Assembly

    driver = TrainingDriver(args, running.Work(plan), check(args))
    async with connected(
        args.cluster,
        driver.wants.folder,
        requirements=driver.wants.requirements,
        log=driver.log,
    ) as ray:
        on_connected()
        await driver.check_nodes(ray)
        rolling = asyncio.create_task(driver.roll_out(ray, stop), name="rollouts on the cluster")
        try:
            yield Assembly(rolls_out=False)
        finally:
            driver.stop("the trainer has ended")
            await asyncio.gather(rolling, return_exceptions=True)
        rolling.result()


class TrainingDriver(Driver):
    """Keeps workers going on a stream that the trainer fills."""

    is_training = True

    async def roll_out(self, ray: Any, stop: Stop) -> None:
        """Keeps workers going until the run is sealed and settled, or the trainer has ended.

        Any error stops the training, because the trainer would wait for ever without workers. An
        error that is not a `HoldfastError` is a bug, and is also raised.
        """
        ordered = asyncio.create_task(self._stop_with(stop), name="stop the workers")
        try:
            async with opened_journal(self._args.journal) as journal:
                if (run := await self._opened(journal)) is not None:
                    await self._supervise(ray, run, journal)
        except Exception as error:
            # Any error counts: without workers, the trainer would wait for ever.
            stop.fail(error)
            if not isinstance(error, HoldfastError):
                raise
        finally:
            ordered.cancel()
            await asyncio.gather(ordered, return_exceptions=True)

    async def _opened(self, journal: Journal) -> Run | None:
        """Waits until the trainer has created the run, and returns the run. Returns None if the
        trainer ends first."""
        while not self._stopping.is_set():
            if (run := await journal.find_run(self._args.run)) is not None:
                return run
            await asyncio.sleep(LOOK_SECONDS)
        return None

    async def _stop_with(self, stop: Stop) -> None:
        await stop.event.wait()
        self.stop(stop.reason or OVER)

    def _changed(self, run: Run) -> dict[str, object]:
        # --model names the folder that is trained. Its engines serve it under their own name.
        return {"run": run.spec.name, "model": None, "max_failures": None}

    def _look(self, now: RunProgress) -> None:
        """Does nothing, because the trainer shows the progress."""
