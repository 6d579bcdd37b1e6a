"""The engines of a training are either the engines at its addresses, or one that is started here.
An engine that is started here serves the newest weights whenever it starts."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

from msgspec import structs

from holdfast.embedded.arguments import VllmSettings
from holdfast.embedded.child_process import EmbeddedEngine
from holdfast.engine.connect import Connection, EmbeddedEngines, EngineAddress, connect, until_up
from holdfast.engine.open_run import TRAINED_MODEL
from holdfast.engine.running.run_plan import RunPlan
from holdfast.policy.client.endpoint import Endpoint
from holdfast.policy.client.replicas import EnginePolicy
from holdfast.policy.client.weight_gate import WeightRecords
from holdfast.policy.rendering.renderer import Renderer
from holdfast.records.errors import UsageError
from holdfast.rollout.threads.contain import in_background
from holdfast.training.run.checks import check_logprobs, check_tokenizer
from holdfast.training.run.loop import ServedWeights
from holdfast.training.run.weights import open_sync
from holdfast.training.settings import TrainingSettings
from holdfast.weights.engine_lock import hold_engines
from holdfast.weights.replica import resume_paused
from holdfast.weights.sync import Restart, WeightSync
from holdfast.weights.version import WeightFolder

MODEL = TRAINED_MODEL
"""The name by which requests ask the engine for the model. It does not depend on the folder of the
version."""


class TrainingEngine:
    """`holdfast serve` in a child process, which is kept alive. If the engine dies, it is started
    again with the newest version, so that no trajectory is sampled with another version."""

    def __init__(
        self,
        version: WeightFolder,
        *,
        log: Path,
        log_requests: bool = False,
        report: Callable[[str], None],
        vllm: VllmSettings | None = None,
    ):
        self._report = report
        self._more = ("--log-requests",) if log_requests else ()
        options = self._options(version.name)
        self._engine = EmbeddedEngine(
            version.path, log=log, options=options, report=report, vllm=vllm
        )

    @property
    def url(self) -> str:
        return self._engine.url

    @property
    def pid(self) -> int:
        return self._engine.pid

    @asynccontextmanager
    async def serve(self) -> AsyncIterator["TrainingEngine"]:
        await self._engine.start_in_thread()
        keeping = self._engine.keep_alive(self._report)
        try:
            async with in_background(keeping, name="keep the engine alive"):
                yield self
        finally:
            await asyncio.to_thread(self._engine.stop)

    async def publish(self, sync: WeightSync, version: WeightFolder) -> None:
        """Gives the engine a version, and returns when the engine has it. If the engine dies
        meanwhile, waits until it has started again with this version."""
        self._engine.serve_instead(version.path, options=self._options(version.name))
        await sync.publish(version)

    async def restart(self, endpoint: Endpoint) -> None:
        """Kills the engine, which is then started again with the newest version."""
        await asyncio.to_thread(self._engine.kill)

    def _options(self, version: str) -> tuple[str, ...]:
        return ("--version", version, "--served-model-name", MODEL, *self._more)


class TrainingEngines:
    """The engines of a training, connected and checked. They get weights when `serve` begins."""

    def __init__(
        self,
        plan: RunPlan,
        settings: TrainingSettings,
        *,
        model: Path,
        renderer: Renderer,
        address: EngineAddress,
        log: Path,
        report: Callable[[str], None],
    ):
        """`log` is the log file of an engine that is started here."""
        self._plan = plan
        self._settings = settings
        self._model = model
        self._renderer = renderer
        self._address = address
        self._log = log
        self._report = report
        self._running: tuple[Connection, WeightSync] | None = None
        """The connection to engines at addresses."""

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[None]:
        """Checks the engines at the training's addresses before anything is written. Keeps the
        connection open inside the block."""
        if not self._address.urls:
            yield
            return
        async with self._connected(self._address) as connection, self._sync(connection) as sync:
            check_tokenizer(_policy(connection), self._model, renderer=self._renderer.name)
            self._running = connection, sync
            yield

    @asynccontextmanager
    async def serve(
        self, version: WeightFolder, records: WeightRecords
    ) -> AsyncIterator[ServedWeights]:
        """Yields engines that sample with `version`, and the function that gives them newer
        versions. The weights of each engine are recorded in `records`."""
        if self._running is not None:
            connection, sync = self._running
            sync.record_in(records)
            await sync.publish_first(version)
            yield ServedWeights(connection, sync, sync.publish)
            return
        if self._address.urls:
            async with self._connected(self._address) as connection, self._sync(connection) as sync:
                sync.record_in(records)
                await sync.publish_first(version)
                yield ServedWeights(connection, sync, sync.publish)
            return
        engine = TrainingEngine(
            version,
            log=self._log,
            log_requests=self._settings.log_requests,
            report=self._report,
            vllm=self._address.vllm,
        )
        async with engine.serve():
            address = structs.replace(self._address, urls=(engine.url,), models=(MODEL,))
            async with (
                self._connected(address) as connection,
                self._sync(connection, engine.restart) as sync,
            ):
                sync.record_in(records)
                await sync.adopt(version)
                yield ServedWeights(connection, sync, partial(engine.publish, sync))

    def _sync(
        self, connection: Connection, restart: Restart | None = None
    ) -> AbstractAsyncContextManager[WeightSync]:
        return open_sync(
            _policy(connection),
            self._settings,
            model=self._model,
            run=self._plan.spec.name,
            restart=restart,
            report=self._report,
        )

    @asynccontextmanager
    async def _connected(self, address: EngineAddress) -> AsyncIterator[Connection]:
        """Connects to the engines, and holds them so that no other training gives them weights."""
        engines = EmbeddedEngines(self._report)
        async with AsyncExitStack() as stack:
            stack.enter_context(hold_engines(address.urls, run=self._plan.spec.name))
            resume = partial(
                resume_paused, address.urls, api_key=address.api_key, report=self._report
            )
            await until_up(address, self._report, resume)
            connection = await stack.enter_async_context(
                connect(address, engines=engines, notify=self._report, renderer=self._renderer)
            )
            policy = _policy(connection)
            if not policy.has_tokens:
                raise UsageError(
                    f"{address.urls[0]} gives messages without token ids: nothing of it can be "
                    "trained; `holdfast policy check URL` says which engines are fit for training"
                )
            policy.check_sampling(self._plan.spec.sampling)
            await self._plan.check_taken(connection)
            check_logprobs(policy, self._plan.spec.sampling)
            yield connection


def _policy(connection: Connection) -> EnginePolicy:
    assert isinstance(connection.policy, EnginePolicy), "made by connect()"
    return connection.policy
