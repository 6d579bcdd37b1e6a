"""The engine of a supervisor is the embedded one, or a vLLM that is started here. At each start, it
serves the newest published weights.

The death of a trainer or a rollouter does not end the engine, and requests of the other part
continue. If the engine dies, the supervisor starts it again at the same address, as often as
`RestartPolicy` allows. Calls wait until the engine is back, and then continue.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from holdfast.embedded.arguments import VllmSettings
from holdfast.embedded.child_process import EmbeddedEngine, EngineDidNotStart
from holdfast.engine.open_run import TRAINED_MODEL
from holdfast.journal import open_journal
from holdfast.pipeline.child import Restarts, how_ended, last_cause
from holdfast.pipeline.settings import RestartPolicy
from holdfast.records.errors import HoldfastError
from holdfast.records.samples.version import newest_of
from holdfast.training.run.folder import ENGINE_LOG, WEIGHTS

UNPUBLISHED = "unpublished"
"""The version of the model before a trainer has published it. No rollout samples with it."""
Served = tuple[Path, str]
"""The folder of a version and its name."""


async def newest_version(address: str, run: str, *, folder: Path) -> Served | None:
    """Returns the newest version of the run whose weights are in the training's folder, or None."""
    if "://" not in address and not Path(address).exists():
        return None
    journal = open_journal(address)
    try:
        stored_run = await journal.find_run(run)
        versions = [] if stored_run is None else await journal.versions(stored_run)
    finally:
        await journal.close()
    newest = newest_of(v for v in versions if (folder / WEIGHTS / v.name).is_dir())
    return None if newest is None else (folder / WEIGHTS / newest.name, newest.name)


class SupervisedEngine:
    """Runs `holdfast serve` in a child process at one address, and starts it again when it dies."""

    def __init__(
        self,
        model: Path,
        newest: Callable[[], Awaitable[Served | None]],
        *,
        folder: Path,
        log_requests: bool,
        report: Callable[[str], None],
        policy: RestartPolicy,
        vllm: VllmSettings | None = None,
    ):
        self.restarts = Restarts(policy)
        self.keeper: asyncio.Task[str]
        """Runs while the engine is served. It is done when the engine is lost; its result is the
        reason."""
        self._model = model
        self._newest = newest
        self._folder = folder
        self._report = report
        self._vllm = vllm
        self._more = ("--log-requests",) if log_requests else ()
        self._engine = self._new()

    def _new(self) -> EmbeddedEngine:
        log = self._folder / ENGINE_LOG
        return EmbeddedEngine(self._model, log=log, report=self._report, vllm=self._vllm)

    @property
    def url(self) -> str:
        return self._engine.url

    @asynccontextmanager
    async def serve(self) -> AsyncIterator["SupervisedEngine"]:
        await self._start_first()
        self.keeper = asyncio.create_task(self._keep_alive(), name="keep the engine alive")
        try:
            yield self
        finally:
            self.keeper.cancel()
            await asyncio.gather(self.keeper, return_exceptions=True)
            await asyncio.to_thread(self._engine.stop)

    async def _start_first(self) -> None:
        """Starts the engine for the first time. If the engine dies before it serves, starts it
        again as often as the restart policy allows, because it may have been killed."""
        while True:
            try:
                return await self._start()
            except EngineDidNotStart as error:
                if not await self._wait_to_start(str(error)):
                    raise
                self._engine = self._new()

    async def _start(self) -> None:
        path, version = await self._newest() or (self._model, UNPUBLISHED)
        options = ("--version", version, "--served-model-name", TRAINED_MODEL, *self._more)
        self._engine.serve_instead(path, options=options)
        await self._engine.start_in_thread()

    async def _keep_alive(self) -> str:
        """Starts the engine again whenever it ends. Returns the reason when the restart policy
        allows no further start."""
        cause = await self._ended()
        while await self._wait_to_start(cause):
            try:
                await self._start()
                cause = await self._ended()
            except HoldfastError as error:
                cause = str(error)
        return last_cause(cause, self.restarts.count)

    async def _ended(self) -> str:
        """Waits until the engine has ended. Returns how it ended."""
        await self._engine.wait_ended()
        return how_ended("engine", await asyncio.to_thread(self._engine.stop))

    async def _wait_to_start(self, cause: str) -> bool:
        """Waits until the engine may be started again, and returns True. Returns False at once if
        the restart policy allows no further start."""
        wait = self.restarts.after_crash()
        if wait is None:
            return False
        self._report(f"{cause}; starting it again in {wait:g} s")
        await asyncio.sleep(wait)
        return True
