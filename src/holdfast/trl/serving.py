"""The engines that sample with the trainer's weights: the embedded one, or those at addresses."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

from msgspec import structs

from holdfast.engine.connect import Connection, EmbeddedEngines, EngineAddress, connect
from holdfast.journal.journal import Consumer, Journal
from holdfast.policy.client.replicas import EnginePolicy
from holdfast.policy.rendering.renderer import Renderer
from holdfast.training.run.serving import MODEL, TrainingEngine
from holdfast.training.run.weights import WeightFolder, connect_sync, remove_old
from holdfast.weights.sync import WeightSync


class TrainerEngines:
    """`publish` the first version before `connect`; each later one goes to the engines at once."""

    def __init__(
        self,
        address: EngineAddress,
        *,
        out: Path,
        renderer: Renderer,
        log_requests: bool,
        report: Callable[[str], None],
    ):
        self.weights = out / "weights"
        """Where versions are written."""
        self._address = address
        self._log = out / "engine.log"
        self._renderer = renderer
        self._log_requests = log_requests
        self._report = report
        self._version: WeightFolder | None = None
        self._served: _Served | None = None

    async def publish(self, version: WeightFolder) -> None:
        """Returns when calls that begin later are sampled with it. Older files are removed."""
        if self._version is not None and version.digest == self._version.digest:
            return
        before, self._version = self._version, version
        keep = {version.name, *([before.name] if before else [])}
        if self._served is not None:
            await self._served.publish(version)
            keep |= self._served.in_use()
        remove_old(self.weights, sorted(keep))

    @asynccontextmanager
    async def connect(
        self, journal: Journal, consumer: Consumer | None
    ) -> AsyncIterator[Connection]:
        """The policy that samples with the version in force. An evaluation shares it."""
        if self._served is not None:
            yield self._served.connection
            return
        assert self._version is not None, "weights have a name before they are served"
        async with self._serve(self._version) as self._served:
            try:
                yield self._served.connection
            finally:
                self._served = None

    @asynccontextmanager
    async def _serve(self, version: WeightFolder) -> "AsyncIterator[_Served]":
        address = self._address
        async with AsyncExitStack() as stack:
            engine: TrainingEngine | None = None
            if not address.urls:
                engine = TrainingEngine(
                    version, log=self._log, log_requests=self._log_requests, report=self._report
                )
                await stack.enter_async_context(engine.serve())
                address = structs.replace(address, urls=(engine.url,), models=(MODEL,))
            connection = await stack.enter_async_context(
                connect(
                    address,
                    engines=EmbeddedEngines(self._report),
                    notify=self._report,
                    renderer=self._renderer,
                )
            )
            policy = connection.policy
            assert isinstance(policy, EnginePolicy), "made by connect()"
            restart = None if engine is None else engine.restart
            sync = await connect_sync(
                policy, model=version.path, restart=restart, report=self._report
            )
            stack.push_async_callback(sync.aclose)
            if engine is not None:
                await sync.adopt(version)
                yield _Served(connection, sync, partial(engine.publish, sync))
                return
            await sync.publish_first(version)
            yield _Served(connection, sync, sync.publish)


class _Served:
    """A policy, and the way by which it gets another version of the weights."""

    def __init__(
        self,
        connection: Connection,
        sync: WeightSync,
        publish: Callable[[WeightFolder], Awaitable[None]],
    ):
        self.connection = connection
        self.publish = publish
        self.in_use = sync.in_use


def write_tokenizer(tokenizer: Any, model: Any, out: Path) -> Path:
    """The tokenizer of the trainer as a folder: its template renders the rollouts' messages."""
    folder = out / "tokenizer"
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save_pretrained(folder)
    model.config.save_pretrained(folder)
    return folder
