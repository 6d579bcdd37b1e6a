"""Holding: while an engine's weights change, nothing new is sampled through the gateway.

A call that is recorded is answered all the same: it asks no engine. One that was begun before goes
on, as the engine lets it. A hold that is not ended lapses at its deadline, and the calls go on:
what waits is the agents' work, and refusing it would cost attempts that the engine may well serve.
"""

import asyncio
import logging
import time

from holdfast.policy.policy import Completion, Policy, Request
from holdfast.records.errors import UsageError

HOLD_SECONDS = 600.0
_log = logging.getLogger("holdfast.gateway")


class Hold:
    """One reason to wait; there may be several at once."""

    def __init__(self, gate: "CallGate", seconds: float):
        self._gate = gate
        self._timer = asyncio.get_running_loop().call_later(seconds, self._lapse)

    def end(self) -> None:
        """Ending it again changes nothing."""
        self._timer.cancel()
        self._gate.without(self)

    def _lapse(self) -> None:
        _log.warning("a hold came to its deadline; the calls that waited go on")
        self.end()


class CallGate:
    """What every call goes through before it is sampled. Open while nothing holds it."""

    def __init__(self) -> None:
        self._holds: set[Hold] = set()
        self._opened = asyncio.Event()
        self._opened.set()
        self.waiting = 0
        self._held_before = 0.0
        self._closed_at = 0.0
        self._is_over = False

    @property
    def seconds_held(self) -> float:
        """For how long it was closed, all in all."""
        now = 0.0 if self._opened.is_set() else time.monotonic() - self._closed_at
        return self._held_before + now

    @property
    def gauges(self) -> dict[str, float]:
        return {
            "held": self.waiting,
            "holding": float(not self._opened.is_set()),
            "hold_seconds_total": self.seconds_held,
        }

    def hold(self, seconds: float = HOLD_SECONDS) -> Hold:
        if not 0 < seconds < float("inf"):
            raise UsageError(f"a hold has a deadline: give seconds above 0, not {seconds!r}")
        hold = Hold(self, seconds)
        if self._is_over:
            hold.end()
            return hold
        if not self._holds:
            self._closed_at = time.monotonic()
        self._holds.add(hold)
        self._opened.clear()
        return hold

    def without(self, hold: Hold) -> None:
        self._holds.discard(hold)
        if not self._holds and not self._opened.is_set():
            self._held_before = self.seconds_held
            self._opened.set()

    def open(self) -> None:
        """For good: a hold that is begun later is over at once, so that what is in flight when a
        gateway closes can end."""
        self._is_over = True
        for hold in tuple(self._holds):
            hold.end()

    async def passed(self) -> None:
        self.waiting += 1
        try:
            # A new hold may begin before those that the last one held have run.
            while not self._opened.is_set():
                await self._opened.wait()
        finally:
            self.waiting -= 1


class HeldPolicy:
    """A policy behind a gate. To an attempt, the time of a hold is time in which the engine was
    down: it counts against no deadline."""

    def __init__(self, policy: Policy, gate: CallGate):
        self.model = policy.model
        self._policy = policy
        self._gate = gate
        self._held_before = gate.seconds_held

    async def check(self) -> None:
        await self._policy.check()

    async def ready(self) -> None:
        await self._policy.ready()

    @property
    def seconds_down(self) -> float:
        return self._policy.seconds_down + self._gate.seconds_held - self._held_before

    async def sample(self, request: Request) -> Completion:
        await self._gate.passed()
        return await self._policy.sample(request)

    async def aclose(self) -> None:
        await self._policy.aclose()
