"""The embedded engine of a training run: whenever it starts, it serves the weights in force."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from holdfast.embedded.child_process import EmbeddedEngine
from holdfast.engine.open_run import TRAINED_MODEL
from holdfast.policy.client.endpoint import Endpoint
from holdfast.records.errors import HoldfastError
from holdfast.weights.sync import WeightSync
from holdfast.weights.version import WeightFolder

RESTART_SECONDS = 0.5
MODEL = TRAINED_MODEL
"""What the engine calls the model, whatever the folder of the version is called."""


class TrainingEngine:
    """`holdfast serve` in a child process, kept alive. One that died comes back with the version
    that is in force, so that no trajectory meets another."""

    def __init__(
        self,
        version: WeightFolder,
        *,
        log: Path,
        log_requests: bool = False,
        report: Callable[[str], None],
    ):
        self._report = report
        self._more = ("--log-requests",) if log_requests else ()
        options = self._options(version.name)
        self._engine = EmbeddedEngine(version.path, log=log, options=options, report=report)

    @property
    def url(self) -> str:
        return self._engine.url

    @property
    def pid(self) -> int:
        return self._engine.pid

    @asynccontextmanager
    async def serve(self) -> AsyncIterator["TrainingEngine"]:
        await self._engine.start_in_thread()
        keeper = asyncio.create_task(self._keep_alive(), name="keep the engine alive")
        try:
            yield self
        finally:
            keeper.cancel()
            await asyncio.gather(keeper, return_exceptions=True)
            await asyncio.to_thread(self._engine.stop)

    async def publish(self, sync: WeightSync, version: WeightFolder) -> None:
        """Returns when the engine has the version. One that dies meanwhile comes back with it, and
        is waited for."""
        self._engine.serve_instead(version.path, options=self._options(version.name))
        await sync.publish(version)

    async def restart(self, endpoint: Endpoint) -> None:
        """Ends it: it comes back with the version in force."""
        await asyncio.to_thread(self._engine.kill)

    async def _keep_alive(self) -> None:
        """A dead engine is an outage like any other: calls wait until it is back, and go on."""
        while True:
            await self._engine.wait_ended()
            try:
                await self._engine.start_in_thread()
            except HoldfastError as error:
                self._report(f"the embedded engine died, and cannot be started again yet: {error}")
                await asyncio.sleep(RESTART_SECONDS)

    def _options(self, version: str) -> tuple[str, ...]:
        return ("--version", version, "--served-model-name", MODEL, *self._more)
