"""The gate of an endpoint: open while it works, shut while it is down.

When calls fail in a row, or the shared retry budget is spent, the gate shuts and one probe asks
the endpoint whether it is back. Calls and admission wait at the gate; nothing fails because of an
outage, until it has lasted longer than the run's patience.

A server may answer probes and do nothing else: its front is up, its engine is not. So where calls
went on to fail after a probe had opened the gate, the next probe has to sample something.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from holdfast.clock import Clock
from holdfast.policy.retry import RetryBudget
from holdfast.records.errors import EndpointDown

FAILURES_IN_A_ROW = 3
PROBE_BASE = 0.25
PROBE_CAP = 5.0
COOL_BASE = 1.0
COOL_CAP = 30.0
PROBE = "probe "
"""How the names of a gate's tasks begin."""


class CircuitBreaker:
    """One per endpoint. `probe` returns None when the endpoint works, else why it does not; it is
    told whether it has to try that in earnest.

    One probe runs at a time, however many calls wait; when it ends, all of them pass together.
    """

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
        self._lies = 0
        self._was_opened_in_vain = False
        """Whether nothing succeeded since a probe opened it."""
        self._cool_down = COOL_BASE
        self._prober: asyncio.Task[None] | None = None
        self._down = ""
        """Why no call will ever pass again."""
        self.budget = RetryBudget()
        self.outages = 0
        """Outages that a failed probe confirmed."""
        self.on_change: Callable[[], None] = lambda: None
        """Called when an outage begins or ends."""
        self.tell: Callable[[str], None] = lambda line: None
        """Called with a line for people when an outage is confirmed, and when it is over."""
        self._down_before = 0.0
        self._down_since: float | None = None

    @property
    def seconds_down(self) -> float:
        """Total time in outages, the present one included."""
        if self._down_since is None:
            return self._down_before
        return self._down_before + self._clock.elapsed() - self._down_since

    @property
    def is_open(self) -> bool:
        """Whether calls pass now."""
        return self._open.is_set() and not self._down

    @property
    def is_given_up(self) -> bool:
        """Whether no call will ever pass again."""
        return bool(self._down)

    @property
    def down_since(self) -> float | None:
        """When the present outage began, on the clock's own scale."""
        return self._down_since

    async def opened(self) -> None:
        """Returns when the gate is open, or given up."""
        await self._open.wait()

    async def passed(self) -> None:
        """Returns when the gate is open; raises `EndpointDown` when patience is at its end."""
        await self._open.wait()
        if self._down:
            raise EndpointDown(self._down)

    def succeeded(self) -> None:
        self._in_a_row = self._lies = 0
        self._was_opened_in_vain = False
        self.budget.succeeded()
        if self.budget.is_full:
            self._cool_down = COOL_BASE

    def failed(self) -> None:
        """A call could not reach the endpoint, or the endpoint said that it cannot serve."""
        self._in_a_row += 1
        if self._in_a_row >= FAILURES_IN_A_ROW:
            self.shut()

    def lied(self) -> None:
        """A call was given an answer that cannot be used. Its probe will find nothing wrong, so
        that it stays away longer each time."""
        self._lies += 1
        if self._lies >= FAILURES_IN_A_ROW:
            self._cool()

    def spend_retry(self) -> None:
        """Takes a retry out of the shared budget; when it is spent, everyone cools down first."""
        if not self.budget.spend():
            self._cool()

    def _cool(self) -> None:
        self._lies = 0
        self.shut(after=self._cool_down)
        self._cool_down = min(COOL_CAP, 2 * self._cool_down)

    def shut(self, *, after: float = 0.0) -> None:
        """Stops everyone until a probe succeeds, the first one `after` seconds from now."""
        if self._open.is_set() and not self._down:
            self._open.clear()
            self._prober = asyncio.create_task(self._reopen(after), name=PROBE + self._name)

    async def _reopen(self, after: float) -> None:
        since, probes, why = self._clock.elapsed(), 0, None
        try:
            if after:
                await self._clock.sleep(after)
            while (why := await self._probe(self._was_opened_in_vain)) is not None:
                probes += 1
                if probes == 1:
                    self.outages += 1
                    self._down_since = since
                    self.on_change()
                    self.tell(f"{self._name} is down ({why}); waiting for it")
                if self._clock.elapsed() - since > self._patience:
                    self._down = (
                        f"{self._name} has been down for {self._clock.elapsed() - since:.0f} s "
                        f"({why}); start it again and run the same command to go on"
                    )
                    return
                await self._clock.sleep(min(PROBE_CAP, PROBE_BASE * 2 ** min(probes, 10)))
            if probes:
                self.tell(f"{self._name} is back")
        finally:
            self._down_before, self._down_since = self.seconds_down, None
            self.on_change()
            self._in_a_row = 0
            self._was_opened_in_vain = True
            self.budget.refill()
            self._open.set()

    async def aclose(self) -> None:
        # A call that still waits must not go on to a client that is closed.
        self._down = self._down or f"the client of {self._name} was closed"
        if self._prober is not None:
            self._prober.cancel()
            await asyncio.gather(self._prober, return_exceptions=True)


class Downtime:
    """Watches the gates of all replicas; the time counts only while every one is in an outage."""

    def __init__(self, gates: Sequence[CircuitBreaker], clock: Clock):
        self._gates = gates
        self._clock = clock
        self._before = 0.0
        self._since: float | None = None
        for gate in gates:
            gate.on_change = self._look

    @property
    def seconds(self) -> float:
        if self._since is None:
            return self._before
        return self._before + self._clock.elapsed() - self._since

    def _look(self) -> None:
        # One that was given up for good never comes back: it is down, and nobody waits for it.
        starts = [gate.down_since for gate in self._gates if not gate.is_given_up]
        if starts and None not in starts:
            if self._since is None:
                self._since = max(start for start in starts if start is not None)
        elif self._since is not None:
            self._before, self._since = self.seconds, None
