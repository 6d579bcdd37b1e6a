"""Connects to a policy: to the engine that serves it, and to the renderer of its model.

The engine is at the addresses of its replicas. If no address is given, the embedded engine is
started, and restarted if it dies. A connection is checked before it is handed out, and closed after
use.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from msgspec import Struct

from holdfast.embedded.arguments import VllmSettings
from holdfast.engine.options import PATIENCE
from holdfast.policy.policy import NoPolicy, Policy
from holdfast.policy.rendering.messages_only import MessagesOnly
from holdfast.policy.rendering.renderer import Renderer
from holdfast.policy.retry import RetryPolicy
from holdfast.records.errors import EndpointDown, PolicyRefused, UsageError, WaitTimedOut
from holdfast.records.run import RunSpec
from holdfast.rollout.threads.contain import in_background

if TYPE_CHECKING:
    from holdfast.embedded.child_process import EmbeddedEngine
    from holdfast.policy.client.replicas import EnginePolicy

LOOK_SECONDS = 1.0
"""Seconds between two tries to reach an engine that is down."""
Answer = TypeVar("Answer")
Notify = Callable[[str], None]
"""Shows a line to people."""


class Connection(Struct, frozen=True):
    """A checked policy with the renderer of its model."""

    policy: Policy
    renderer: Renderer


class EngineAddress(Struct, frozen=True, kw_only=True):
    """The addresses of a policy's engine, and the settings of a connection to it."""

    urls: tuple[str, ...] = ()
    """The addresses of the replicas. If empty, an engine is started here."""
    models: tuple[str, ...] = ()
    """Names that the engine may have for the model; the user's own name comes first. If empty, the
    engine must serve exactly one model, which is used."""
    folder: str | None = None
    """The model folder for an engine that is started here. None means the embedded engine's own
    model.
    """
    vllm: VllmSettings | None = None
    """The settings of a vLLM that is started here. None means that the embedded engine is
    started.
    """
    api_key: str | None = None
    dialect: str | None = None
    """The engine's API. None means that it is detected."""
    retry: RetryPolicy = RetryPolicy()
    patience: float = PATIENCE.default
    tokenizer: str | None = None
    renderer: str | None = None
    """The name of a renderer for `renderer_for`, for example a model family."""
    is_trained: bool = False
    """Whether a training sends weights to the replicas."""
    waits: bool = False
    """Whether a connection waits for an engine that is down at the start, as for a later outage."""
    source: str = ""
    """Where the address comes from, for error messages."""
    remedy: str = "name one with --model"
    """The advice in error messages on how to name another model; "" if the user just did so."""

    def __repr__(self) -> str:
        return f"EngineAddress({self.urls!r}, {self.source!r})"


@asynccontextmanager
async def connect(
    address: EngineAddress,
    *,
    engines: "EmbeddedEngines",
    notify: Notify,
    renderer: Renderer | None = None,
) -> AsyncIterator[Connection]:
    """Yields a checked connection to the policy at the address.

    `notify` is called when a replica goes down or comes back.
    """
    # Imported late, so that bad input is reported fast.
    from holdfast.policy.client.replicas import EnginePolicy

    async with AsyncExitStack() as stack:
        urls, models = address.urls, address.models
        if not urls:
            engine = await stack.enter_async_context(engines.use(address.folder, address.vllm))
            urls, models = (engine.url,), models or (engine.model,)
        policy = EnginePolicy(
            urls,
            await until_up(address, notify, lambda: find_model(address, urls, models)),
            dialect=address.dialect,
            api_key=address.api_key,
            retry=address.retry,
            patience=address.patience,
            notify=notify,
            is_trained=address.is_trained,
        )
        stack.push_async_callback(policy.aclose)
        await until_up(address, notify, lambda: check_engine(policy, dialect=address.dialect))
        yield Connection(policy, renderer or _renderer(policy, address))


async def until_up(
    address: EngineAddress, notify: Notify, ask: Callable[[], Awaitable[Answer]]
) -> Answer:
    """Calls `ask` and returns its result. If `address.waits` is true and the engine is down,
    repeats the call for up to `address.patience` seconds."""
    began, is_reported = time.monotonic(), False
    while True:
        try:
            return await ask()
        except EndpointDown as error:
            if not address.waits:
                raise
            if (waited := time.monotonic() - began) >= address.patience:
                raise WaitTimedOut(f"{error} (waited {waited:.0f} s)") from error
            if not is_reported:
                notify(f"{error}; waiting for it")
            is_reported = True
        await asyncio.sleep(LOOK_SECONDS)


async def connect_policy(policy: Policy, renderer: Renderer | None = None) -> Connection:
    """Connects to a policy object that the caller made and will close."""
    await policy.check()
    return Connection(policy, renderer or _renderer(policy, EngineAddress()))


def recorded_connection(spec: RunSpec) -> Connection:
    """Returns a connection for a run that needs no more samples. An attempt to sample through the
    connection raises `PolicyRefused`."""
    why = PolicyRefused(
        f"run {spec.name!r} was only to be scored, and samples again; give the same command again"
    )
    return Connection(NoPolicy(spec.model, why), MessagesOnly(spec.renderer))


def no_connection() -> Connection:
    """Returns a connection for rollouts that sample nothing."""
    why = UsageError("a rollout that declares that it needs no policy asked for a sample")
    return Connection(NoPolicy("none", why), MessagesOnly())


async def check_engine(policy: "EnginePolicy", *, dialect: str | None) -> None:
    """Raises an error if the engine is down, does not serve the model, or does not speak the
    dialect.
    """
    from holdfast.policy.client.discovery import check_dialect

    await policy.check()
    if dialect is not None:
        await check_dialect(
            [endpoint for endpoint in policy.endpoints if endpoint.introduce is None]
        )


def choose_model(models: Sequence[str], served: Sequence[str], *, where: str, remedy: str) -> str:
    """Returns the first name in `models` that the engine serves. If `models` is empty, returns the
    engine's only model.

    Raises `UsageError` if there is no such model. For the message, `where` names the engine, and
    `remedy` says how to name another model.
    """
    found = [name for name in models if name in served]
    if found or (not models and len(served) == 1):
        return (found or served)[0]
    listed = ", ".join(served) or "none"
    if not models:
        raise UsageError(f"{where} serves {listed}: {remedy}")
    advice = f". To use another: {remedy}" if remedy else ""
    raise UsageError(f"{where} does not serve model {models[0]!r}; it serves: {listed}{advice}")


async def find_model(address: EngineAddress, urls: Sequence[str], models: Sequence[str]) -> str:
    """Asks the replicas for their models, and returns the name of the one to use."""
    from holdfast.policy.client.discovery import served_models
    from holdfast.policy.client.replicas import EnginePolicy

    probe = EnginePolicy(urls, "", api_key=address.api_key)
    try:
        found = await asyncio.gather(
            *(served_models(endpoint) for endpoint in probe.endpoints), return_exceptions=True
        )
    finally:
        await probe.aclose()
    answers = [answer for answer in found if not isinstance(answer, BaseException)]
    if not answers:
        assert isinstance(found[0], BaseException), "none of them answered"
        raise found[0]
    name = probe.endpoints[0].name
    where = f"{name} ({address.source})" if address.source else name
    served = [model.id for model in answers[0] if not model.is_ours]
    return choose_model(models, served, where=where, remedy=address.remedy)


def _renderer(policy: Policy, address: EngineAddress) -> Renderer:
    from holdfast.policy.rendering.select import renderer_of

    return renderer_of(policy, tokenizer=address.tokenizer, family=address.renderer)


class EmbeddedEngines:
    """Engines that are started here, one for each model folder.

    An engine starts at its first use. It is restarted if it dies while in use, and keeps running
    for the next use until `close`.
    """

    def __init__(self, notify: Notify, *, quiet: bool = False):
        """If `quiet` is true, starts that succeed show no message."""
        self._notify = notify
        self._progress = None if quiet else notify
        self._engines: dict[tuple[str | None, VllmSettings | None], EmbeddedEngine] = {}

    @asynccontextmanager
    async def use(
        self, folder: str | None, vllm: VllmSettings | None = None
    ) -> "AsyncIterator[EmbeddedEngine]":
        """Yields the running engine for this folder. Each engine has at most one user at a time."""
        key = folder, vllm
        if key not in self._engines:
            self._engines[key] = await self._start(folder, vllm)
        engine = self._engines[key]
        async with in_background(engine.keep_alive(self._notify), name="keep the engine alive"):
            yield engine

    async def _start(self, folder: str | None, vllm: VllmSettings | None) -> "EmbeddedEngine":
        from holdfast.embedded.child_process import EmbeddedEngine

        if self._progress is not None:
            which = "no policy is named: starting the embedded engine"
            self._progress(which if vllm is None else "starting vLLM")
        path = None if folder is None else Path(folder)
        engine = EmbeddedEngine(path, report=self._progress, vllm=vllm)
        await engine.start_in_thread()
        return engine

    def close(self) -> None:
        """Stops the engines and waits until they have ended. A second call does nothing."""
        engines, self._engines = list(self._engines.values()), {}
        for engine in engines:
            engine.stop()
