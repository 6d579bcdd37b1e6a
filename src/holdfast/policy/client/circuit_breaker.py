"""The circuit breaker of an endpoint. Calls pass while the endpoint works, and wait while it is
down.

The breaker trips when several calls in a row fail, or when the shared retry budget is spent. Then a
probe asks the endpoint again and again whether it is back. Meanwhile calls and new tasks wait. An
outage fails no call until it has lasted longer than the run's patience.

A server may answer probes although its engine cannot sample. So if calls fail again after a
successful probe, the next probe has to sample a token.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from holdfast.clock import Clock
from holdfast.records.errors import EndpointDown, WaitTimedOut

FAILURES_IN_A_ROW = 3
PROBE_BASE_SECONDS = 0.25
PROBE_MAX_SECONDS = 5.0
COOL_BASE_SECONDS = 1.0
COOL_MAX_SECONDS = 30.0
PROBE_TASK_PREFIX = "probe "
"""The prefix of the names of the breaker's tasks."""


class RetryBudget:
    """The retries that all calls to an endpoint share. The budget begins full, and every ten
    successes give back one retry. Without the budget, retries would add the most calls when the
    engine is overloaded."""

    def __init__(self, *, floor: float = 50.0, earned: float = 0.1):
        self._floor = floor
        self._earned = earned
        self._left = floor

    def earn(self) -> None:
        self._left = min(self._floor, self._left + self._earned)

    def spend(self) -> bool:
        """Takes one retry out of the budget. Returns False if no retry is left."""
        if self._left < 1:
            return False
        self._left -= 1
        return True

    @property
    def is_full(self) -> bool:
        return self._left >= self._floor

    def refill(self) -> None:
        self._left = self._floor


class CircuitBreaker:
    """The breaker of one endpoint. `probe(must_sample)` returns None if the endpoint works, else
    the reason why it does not. One probe runs at a time. When it ends, all waiting calls pass
    together."""

    def __init__(
        self,
        name: str,
        probe: Callable[[bool], Awaitable[str | None]],
        *,
        clock: Clock,
        patience: float,
    ):
        self._name = name
        self._probe = probe
        self._clock = clock
        self._patience = patience
        self._open = asyncio.Event()
        self._open.set()
        self._in_a_row = 0
        self._bad_answers = 0
        self._must_sample = False
        """Whether no call has succeeded since the last probe ended."""
        self._cool_down = COOL_BASE_SECONDS
        self._prober: asyncio.Task[None] | None = None
        self._reason_down = ""
        """Why the endpoint is abandoned, or "" if it is in use."""
        self._is_out_of_patience = False
        """Whether the endpoint was abandoned only because of an outage, which may end before the
        next use."""
        self.budget = RetryBudget()
        self.outages = 0
        """The number of outages that a failed probe confirmed."""
        self.on_change: Callable[[], None] = lambda: None
        """Called when an outage begins or ends."""
        self.notify: Callable[[str], None] = lambda line: None
        """Called with a line for people when an outage is confirmed and when it is over."""
        self._down_before = 0.0
        self.down_since: float | None = None
        """When the present outage began, on the clock's own scale."""

    @property
    def seconds_down(self) -> float:
        """Returns the total time in outages, including the present one."""
        if self.down_since is None:
            return self._down_before
        return self._down_before + self._clock.elapsed() - self.down_since

    @property
    def is_passing(self) -> bool:
        """Returns whether calls pass now."""
        return self._open.is_set() and not self._reason_down

    @property
    def reason_down(self) -> str:
        """Returns why the endpoint is abandoned, or "" if it is in use."""
        return self._reason_down

    @property
    def is_abandoned(self) -> bool:
        """Returns whether no call will ever pass again."""
        return bool(self._reason_down)

    async def wait_resolved(self) -> None:
        """Returns when calls pass or the endpoint is abandoned."""
        await self._open.wait()

    async def wait_ready(self) -> None:
        """Returns when calls pass. Raises `EndpointDown` if the endpoint is abandoned, as
        `WaitTimedOut` after an outage."""
        await self._open.wait()
        if self._reason_down:
            raise (WaitTimedOut if self._is_out_of_patience else EndpointDown)(self._reason_down)

    def record_success(self) -> None:
        self._in_a_row = self._bad_answers = 0
        self._must_sample = False
        self.budget.earn()
        if self.budget.is_full:
            self._cool_down = COOL_BASE_SECONDS

    def record_failure(self) -> None:
        """Records that a call did not reach the endpoint, or that the endpoint cannot serve.
        Several such failures in a row stop all calls until a probe succeeds."""
        self._in_a_row += 1
        if self._in_a_row >= FAILURES_IN_A_ROW:
            self.trip()

    def record_bad_answer(self) -> None:
        """Records that a call got an invalid answer. Several invalid answers in a row stop all
        calls for a while, each time longer than before, because a probe would find no fault."""
        self._bad_answers += 1
        if self._bad_answers >= FAILURES_IN_A_ROW:
            self._cool()

    def spend_retry(self) -> None:
        """Takes a retry out of the shared budget. If no retry is left, stops all calls until a
        probe succeeds."""
        if not self.budget.spend():
            self._cool()

    def _cool(self) -> None:
        self._bad_answers = 0
        self.trip(after=self._cool_down)
        self._cool_down = min(COOL_MAX_SECONDS, 2 * self._cool_down)

    def trip(self, *, after: float = 0.0) -> None:
        """Stops all calls until a probe succeeds. The first probe starts `after` seconds from
        now."""
        if self._open.is_set() and not self._reason_down:
            self._open.clear()
            self._prober = asyncio.create_task(
                self._reopen(after), name=PROBE_TASK_PREFIX + self._name
            )

    def abandon(self, reason: str) -> None:
        """Abandons the endpoint for this reason: no call will pass again."""
        self._reason_down = self._reason_down or reason
        self._open.set()

    @property
    def is_probing(self) -> bool:
        return self._prober is not None and not self._prober.done()

    def retry_outage(self) -> None:
        """Uses the endpoint again if it was abandoned only because an outage outlasted the
        patience. An endpoint that was abandoned for another reason stays abandoned."""
        if self._is_out_of_patience:
            self._reason_down, self._is_out_of_patience = "", False

    def change_loop(self) -> None:
        """Prepares for use by another event loop. The endpoint counts as up there, because a probe
        of the old loop will never end. If the endpoint is still down, the next calls find that
        out."""
        self._prober = None
        self._open = asyncio.Event()
        self._open.set()
        self.down_since = None
        self.on_change()
        self.retry_outage()

    async def _reopen(self, after: float) -> None:
        since, probes, why = self._clock.elapsed(), 0, None
        try:
            if after:
                await self._clock.sleep(after)
            while (why := await self._probe(self._must_sample)) is not None:
                probes += 1
                if probes == 1:
                    self.outages += 1
                    self.down_since = since
                    self.on_change()
                    self.notify(f"{self._name} is down ({why}); waiting for it")
                if self._reason_down:
                    return
                if self._clock.elapsed() - since > self._patience:
                    self._is_out_of_patience = True
                    self._reason_down = (
                        f"{self._name} has been down for {self._clock.elapsed() - since:.0f} s "
                        f"({why}); start it again and run the same command to go on"
                    )
                    return
                await self._clock.sleep(
                    min(PROBE_MAX_SECONDS, PROBE_BASE_SECONDS * 2 ** min(probes, 10))
                )
            if probes:
                self.notify(f"{self._name} is back")
        finally:
            self._down_before, self.down_since = self.seconds_down, None
            self.on_change()
            self._in_a_row = 0
            self._must_sample = True
            self.budget.refill()
            self._open.set()

    async def aclose(self) -> None:
        # Waiting calls must not continue with a closed client.
        self._reason_down = self._reason_down or f"the client of {self._name} was closed"
        if self._prober is not None:
            self._prober.cancel()
            await asyncio.gather(self._prober, return_exceptions=True)


async def wait_for_any(breakers: Sequence[CircuitBreaker]) -> None:
    """Returns when calls pass at one of the breakers, or when one of them is abandoned."""
    waits = [asyncio.ensure_future(breaker.wait_resolved()) for breaker in breakers]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
        await asyncio.gather(*waits, return_exceptions=True)


class Downtime:
    """Watches the breakers of all replicas and counts the time during which all replicas are
    down."""

    def __init__(self, breakers: Sequence[CircuitBreaker], clock: Clock):
        self._breakers = breakers
        self._clock = clock
        self._before = 0.0
        self._since: float | None = None
        for breaker in breakers:
            breaker.on_change = self._look

    @property
    def seconds(self) -> float:
        if self._since is None:
            return self._before
        return self._before + self._clock.elapsed() - self._since

    def _look(self) -> None:
        # An abandoned replica never comes back, and no call waits for it.
        starts = [breaker.down_since for breaker in self._breakers if not breaker.is_abandoned]
        if starts and None not in starts:
            if self._since is None:
                self._since = max(start for start in starts if start is not None)
        elif self._since is not None:
            self._before, self._since = self.seconds, None
