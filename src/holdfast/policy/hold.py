"""CallHolds: makes new calls wait while an engine's weights change.

A recorded call is still answered, because it needs no engine. A call that began before the hold
continues if the engine lets it. A hold that is not ended lapses at its deadline, and the waiting
calls continue: the engine may well serve them, and refusing them would cost attempts.
"""

import asyncio
import logging
import time
from typing import Protocol, runtime_checkable

from holdfast.policy.policy import Completion, Policy, Request, WrappedPolicy
from holdfast.records.errors import UsageError

HOLD_SECONDS = 600.0
_log = logging.getLogger("holdfast.policy")


class Hold:
    """A hold on all calls, until `end` or its deadline. Several holds may be in effect at once."""

    def __init__(self, holds: "CallHolds", seconds: float):
        self._holds = holds
        self._timer = asyncio.get_running_loop().call_later(seconds, self._lapse)

    def end(self) -> None:
        """Ends the hold. A second call changes nothing."""
        self._timer.cancel()
        self._holds.remove(self)

    def _lapse(self) -> None:
        _log.warning("a hold came to its deadline; the calls that waited go on")
        self.end()


class CallHolds:
    """The holds that are in effect. Each call waits until there are none."""

    def __init__(self) -> None:
        self._holds: set[Hold] = set()
        self.waiting = 0
        """The number of calls that wait for the end of a hold."""
        self._held_before = 0.0
        self._held_since = 0.0
        self.change_loop()

    def change_loop(self) -> None:
        """Prepares for calls of another event loop. Drops the old loop's holds, which would never
        end, because their deadlines were timers of that loop."""
        self._holds.clear()
        self.waiting = 0
        self._is_free = asyncio.Event()
        self._is_free.set()

    @property
    def is_in_use(self) -> bool:
        """Returns whether a hold is in effect or a call waits."""
        return bool(self._holds or self.waiting)

    @property
    def seconds_held(self) -> float:
        """Returns the total time for which calls were held."""
        now = 0.0 if self._is_free.is_set() else time.monotonic() - self._held_since
        return self._held_before + now

    @property
    def gauges(self) -> dict[str, float]:
        return {
            "held": self.waiting,
            "holding": float(not self._is_free.is_set()),
            "hold_seconds_total": self.seconds_held,
        }

    def hold(self, seconds: float = HOLD_SECONDS) -> Hold:
        """Begins a hold, which lapses after `seconds`."""
        if not 0 < seconds < float("inf"):
            raise UsageError(f"a hold has a deadline: give seconds above 0, not {seconds!r}")
        hold = Hold(self, seconds)
        if not self._holds:
            self._held_since = time.monotonic()
        self._holds.add(hold)
        self._is_free.clear()
        return hold

    def remove(self, hold: Hold) -> None:
        """Removes a hold. A hold that is not in effect changes nothing."""
        self._holds.discard(hold)
        if not self._holds and not self._is_free.is_set():
            self._held_before = self.seconds_held
            self._is_free.set()

    async def wait(self) -> None:
        """Returns when no hold is in effect."""
        self.waiting += 1
        try:
            # A new hold may begin before the calls that the last hold released have run.
            while not self._is_free.is_set():
                await self._is_free.wait()
        finally:
            self.waiting -= 1


@runtime_checkable
class Holdable(Policy, Protocol):
    """A policy whose calls wait while a hold is in effect."""

    holds: CallHolds


class HoldablePolicy(WrappedPolicy):
    """Adds holds to a policy that has none. The time of a hold counts as downtime of the engine, so
    it does not count towards an attempt's deadline."""

    def __init__(self, policy: Policy, holds: CallHolds | None = None):
        super().__init__(policy)
        self.holds = holds or CallHolds()

    @property
    def seconds_down(self) -> float:
        return super().seconds_down + self.holds.seconds_held

    async def sample(self, request: Request) -> Completion:
        await self.holds.wait()
        return await super().sample(request)


def with_holds(policy: Policy) -> Holdable:
    """Returns the policy itself if it supports holds. Wraps it otherwise."""
    return policy if isinstance(policy, Holdable) else HoldablePolicy(policy)
