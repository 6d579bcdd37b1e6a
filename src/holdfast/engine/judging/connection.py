"""JudgeConnection is a judge's connection to its engine. All calls that are open at once share it.

The first call that needs the connection opens it. If the engine is down, at the start or later,
calls wait for it for up to `patience` seconds of outage. Calls that waited together fail together.
"""

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack

from holdfast.clock import SystemClock
from holdfast.engine.connect import Connection
from holdfast.engine.open_policy import LOG
from holdfast.policy.client.circuit_breaker import CircuitBreaker
from holdfast.records.errors import EndpointDown, HoldfastError

Open = Callable[[float], AbstractAsyncContextManager[Connection]]
"""Connects to the engine. The argument is the patience for later outages."""


class JudgeConnection:
    """The connection of one event loop."""

    def __init__(self, engine: str, open_connection: Open):
        """`engine` is the engine's address, for messages."""
        self.users = 0
        """The number of open blocks and calls."""
        self._engine = engine
        self._open = open_connection
        self._opening = asyncio.Lock()
        self._stack = AsyncExitStack()
        self._connection: Connection | None = None
        self._breaker: CircuitBreaker | None = None
        """The circuit breaker of an outage that began before there was a connection."""
        self._down_before = 0.0
        self._failed: EndpointDown | None = None

    @property
    def seconds_down(self) -> float:
        now = 0.0 if self._breaker is None else self._breaker.seconds_down
        later = 0.0 if self._connection is None else self._connection.policy.seconds_down
        return self._down_before + now + later

    async def get(self, patience: float) -> Connection:
        """Returns the connection, and opens it if needed.

        Raises `EndpointDown` if the engine stays down for longer than `patience`.
        """
        failed = self._failed
        async with self._opening:
            if self._failed is not None and self._failed is not failed:
                raise type(self._failed)(str(self._failed))
            if self._connection is None:
                connection = await self._connect(patience)
                self._down_before -= connection.policy.seconds_down
                self._connection = connection
        return self._connection

    async def aclose(self) -> None:
        await self._stack.aclose()

    async def _connect(self, patience: float) -> Connection:
        while True:
            try:
                return await self._stack.enter_async_context(self._open(patience))
            except EndpointDown:
                await self._wait(patience)

    async def _wait(self, patience: float) -> None:
        """Waits until the engine answers. Raises `EndpointDown` if `patience` runs out."""
        breaker = CircuitBreaker(self._engine, self._probe, clock=SystemClock(), patience=patience)
        breaker.notify = LOG.warning
        self._breaker = breaker
        breaker.trip()
        try:
            await breaker.wait_ready()
        except EndpointDown as error:
            self._failed = error
            raise
        finally:
            await breaker.aclose()
            self._breaker = None
            self._down_before += breaker.seconds_down

    async def _probe(self, must_sample: bool) -> str | None:
        # The module imports an HTTP client.
        from holdfast.policy.client.probe import describe_error

        try:
            async with self._open(0.0):
                return None
        except EndpointDown as error:
            return describe_error(error.__cause__ or error)
        except HoldfastError:
            return None  # The server answers. Connecting to it raises a better error.
