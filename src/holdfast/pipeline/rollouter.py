"""Rollouter: the engine over a stream that others fill. It works, and ends when that is sealed.

It samples nothing by weights that the run does not know: an engine that was started anew may hold
the model as it was before all training, and is waited for until it has a published version. Nor
does it begin while the trainer trains steps again after a restore: an engine may have weights of
one of these steps, and what is admitted belongs to a later one.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from holdfast.engine.connect import Connection
from holdfast.engine.progress.counters import Progress
from holdfast.engine.running.engine import Ending
from holdfast.engine.running.run_plan import RunPlan
from holdfast.engine.stop import Stop
from holdfast.journal.journal import Journal, Worker
from holdfast.policy.client.capability_check import PROMPT
from holdfast.policy.client.endpoint import Endpoint
from holdfast.policy.client.probe import UNREACHABLE
from holdfast.policy.client.replicas import EnginePolicy
from holdfast.policy.policy import Request
from holdfast.records.errors import UsageError
from holdfast.records.run import Run
from holdfast.records.sampling import Sampling
from holdfast.records.step import VersionSource
from holdfast.training.settings import training_of

LOOK_SECONDS = 1.0
"""Between two requests to each engine for its version."""


class Rollouter:
    """Works on one run, until it is sealed and everything is settled, or until it is stopped."""

    def __init__(
        self,
        plan: RunPlan,
        *,
        journal: Journal,
        connection: Connection,
        stop: Stop,
        progress: Progress | None = None,
        report: Callable[[str], None] = lambda line: None,
        on_joined: Callable[[Worker], Awaitable[None]] | None = None,
    ):
        self._plan = plan
        self._journal = journal
        self._connection = connection
        self._stop = stop
        self._progress = progress
        self._report = report
        self._on_joined = on_joined

    async def work(self, run: Run) -> Ending:
        """Returns when the stream has ended or a stop was requested; what is in flight is durable
        then, up to its last whole step."""
        if await self._until_published(run):
            await self._check_versions()
        rollouts = self._plan.engine(
            run,
            self._journal,
            self._connection,
            stop=self._stop,
            progress=self._progress,
            on_joined=self._on_joined,
        )
        return await rollouts.work()

    async def _check_versions(self) -> None:
        """Raises `UsageError` for engines that do not say which weights sampled a token: when they
        change is another process's to know."""
        policy = self._connection.policy
        if not isinstance(policy, EnginePolicy):
            return
        request = Request(PROMPT, Sampling(1), 0, "holdfast-rollouter-check")
        spans = (await policy.sample(request)).versions
        if any(span.source is not VersionSource.ENGINE for span in spans):
            raise UsageError(
                f"{policy.endpoints[0].name} does not say which weights sampled a token, and a "
                "rollouter of its own cannot know: start vLLM with --enable-scale-out, or roll out "
                "and train in one process (holdfast.pipeline.train_async)"
            )

    async def _until_published(self, run: Run) -> bool:
        """False where nothing is to be sampled: the run is over, or to be stopped."""
        policy = self._connection.policy
        if not isinstance(policy, EnginePolicy):
            return True
        reported = False
        while not self._stop.requested and not (await self._journal.progress(run)).is_over:
            known = {version.name for version in await self._journal.versions(run)}
            served = await asyncio.gather(*(e.version() for e in policy.endpoints))
            for endpoint, version in zip(policy.endpoints, served, strict=True):
                if version is None and await _never_says(endpoint):
                    raise UsageError(
                        f"{endpoint.name} does not say which weights it has: a rollouter of its "
                        "own needs an engine that does; leave out --only and --async, or use "
                        "SGLang or `holdfast serve`"
                    )
            if known.issuperset(served) and not await self._is_catching_up(run):
                return True
            if not reported:
                reported = True
                self._report("waiting until the engines have weights that the trainer published")
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stop.event.wait(), LOOK_SECONDS)
        return False

    async def _is_catching_up(self, run: Run) -> bool:
        found = await self._journal.find_run(run.spec.name)
        training = None if found is None else training_of(found)
        return training is not None and training.is_catching_up


async def _never_says(endpoint: Endpoint) -> bool:
    """Whether an engine is up and never reports a version. One that is down reports none either."""
    try:
        await endpoint.models()
    except UNREACHABLE:
        return False
    return endpoint.breaker.is_passing and await endpoint.version() is None
