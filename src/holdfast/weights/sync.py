"""WeightSync: a version of the weights into every replica of a policy, all or nothing for each.

Prepare, send, check, switch. While engines switch, calls and admission are held; requests in flight
are kept by their engines. A replica that did not take a version, or took it and serves something
else, gets no calls: it is sent the version again by the probe of its circuit breaker, started anew
if it is ours, or given up with its root cause. One that comes back is given the version in force.
Its tokens since the switch are dropped if the check fails, and no reply ends before the check.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from functools import partial

from msgspec import Struct

from holdfast import crashpoint
from holdfast.policy.client.endpoint import Endpoint
from holdfast.policy.client.replicas import EnginePolicy
from holdfast.policy.hold import Hold
from holdfast.records.errors import BadAnswer, EngineUnavailable, HoldfastError
from holdfast.rollout.threads.contain import to_its_end
from holdfast.weights.probe import ProbeResult, check_scores, check_version
from holdfast.weights.replica import UPDATE_SECONDS, EngineKind, Replica
from holdfast.weights.strategies.strategy import (
    AUTO,
    Acknowledgement,
    Choice,
    WeightStrategy,
    check_alike,
    choose,
    describe,
)
from holdfast.weights.version import UNFINISHED, WeightFolder, WeightsNotTaken

MAX_SENDS = 3
"""How often a replica that answers is sent a version that it does not take."""
Restart = Callable[[Endpoint], Awaitable[None]]


class UpdateTimes(Struct):
    """Of the last update, in seconds."""

    prepared: float = 0.0
    sent: float = 0.0
    """The transfer alone."""
    stood_still: float = 0.0
    """For which requests in flight were not sampled, at most."""
    held: float = 0.0
    """For which no new call began."""


class WeightSync:
    """`start` it before the first version; then `publish` each. For one event loop."""

    def __init__(
        self,
        policy: EnginePolicy,
        strategies: Sequence[WeightStrategy],
        *,
        wanted: str = AUTO,
        restart: Restart | None = None,
        report: Callable[[str], None] = lambda line: None,
        deadline: float = UPDATE_SECONDS,
    ):
        """`strategies` in the order of preference. `restart` starts a replica anew, if it is ours.
        `report` gets lines for people. `deadline`: of the hold, in seconds."""
        self._policy = policy
        self._strategies = tuple(strategies)
        self._wanted = wanted
        self._restart = restart
        self._report = report
        self._deadline = deadline
        self._replicas = {endpoint: Replica(endpoint) for endpoint in policy.endpoints}
        self._choices: dict[Replica, Choice] = {}
        self._locks = {replica: asyncio.Lock() for replica in self._replicas.values()}
        self._suspects: dict[Replica, str] = {}
        """Replicas whose weights are not known to be whole, with the reason."""
        self._refusals: dict[Replica, int] = {}
        self._restarted: set[Replica] = set()
        """Replicas that were restarted for the current version, once at most."""
        self._version: WeightFolder | None = None
        self._is_first = False
        self.times = UpdateTimes()
        self._still_since = 0.0
        self.probes: dict[str, ProbeResult] = {}
        """The last comparison of each replica, by its name."""

    # --- before the first version

    async def start(self) -> None:
        """Finds out how each replica gets its weights. Raises `UsageError` where none can."""
        up = [r for e, r in self._replicas.items() if e.introduce is None]
        choices = await asyncio.gather(*(self._choose(replica) for replica in up))
        check_alike(up)
        for strategy in self._used():
            await strategy.start(self._by(strategy))
        for line in describe(choices):
            self._report(line)
        for endpoint, replica in self._replicas.items():
            endpoint.bring_up_to_date = partial(self._bring_up_to_date, replica)

    async def _choose(self, replica: Replica) -> Choice:
        choice = await choose(replica, self._strategies, wanted=self._wanted)
        self._choices[replica] = choice
        return choice

    def _used(self) -> list[WeightStrategy]:
        return [s for s in self._strategies if self._by(s)]

    def _by(self, strategy: WeightStrategy) -> list[Replica]:
        return [r for r, choice in self._choices.items() if choice.strategy is strategy]

    # --- a version

    async def publish_first(self, version: WeightFolder) -> None:
        """As `publish`, but an engine that is up and does not take it is an error: what cannot work
        is refused before anything is sampled."""
        self._is_first = True
        try:
            await self.publish(version)
        finally:
            self._is_first = False
        for why in self._suspects.values():
            raise WeightsNotTaken(why)

    async def adopt(self, version: WeightFolder) -> None:
        """For engines that were started with the version: it is checked, and not sent."""
        for strategy in self._used():
            await strategy.prepare(version)
        self._version = version
        self._policy.expect(version.name)
        for replica, choice in self._choices.items():
            await self._check(choice.strategy, version, replica)
            replica.endpoint.weights = version.name

    async def publish(self, version: WeightFolder) -> None:
        """Returns when every replica that gets calls has the version: calls that begin later are
        sampled with it. Raises `WeightsNotTaken` if no replica took it. Cancelled, it ends the
        update first."""
        began = time.monotonic()
        for strategy in self._used():
            await strategy.prepare(version)
        self._version = version
        self._refusals.clear()
        self._restarted.clear()
        self.times = UpdateTimes(prepared=time.monotonic() - began)
        crashpoint.reach("weights.prepared")
        self._policy.expect(version.name)
        await to_its_end(self._update_all(version))
        await self._wait_until_taken(version)
        await self._tidy()
        crashpoint.reach("weights.switched")

    @property
    def dtypes(self) -> list[str]:
        """Of the engines' models; "" where an engine does not say."""
        replicas = self._replicas.values()
        return [r.dtype or ("float32" if r.kind is EngineKind.EMBEDDED else "") for r in replicas]

    def in_use(self) -> set[str]:
        """Names of versions whose files may still be read by an engine."""
        return {name for strategy in self._used() for name in strategy.in_use()}

    async def _update_all(self, version: WeightFolder) -> None:
        groups = []
        for strategy in self._used():
            up = [r for r in self._by(strategy) if r.endpoint.breaker.is_passing]
            if up:
                groups.append(self._update(strategy, version, up, hold=True))
        await asyncio.gather(*groups)

    async def _wait_until_taken(self, version: WeightFolder) -> None:
        """Until a replica has it; the others get no calls before they have."""
        while not any(e.weights == version.name for e in self._policy.endpoints):
            left = [e.breaker for e in self._policy.endpoints if not e.breaker.is_abandoned]
            if not left:
                reasons = {e.breaker.reason_down for e in self._policy.endpoints}
                raise WeightsNotTaken("; ".join(sorted(reasons)))
            waits = [asyncio.ensure_future(breaker.wait_resolved()) for breaker in left]
            try:
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for wait in waits:
                    wait.cancel()
                await asyncio.gather(*waits, return_exceptions=True)

    async def _tidy(self) -> None:
        """What fails here is tried again after the next version."""
        for replica, choice in self._choices.items():
            if replica.endpoint.breaker.is_passing:
                try:
                    await choice.strategy.tidy(replica)
                except WeightsNotTaken as error:
                    self._report(f"weights: {error}")

    # --- one update of some replicas

    async def _update(
        self,
        strategy: WeightStrategy,
        version: WeightFolder,
        replicas: Sequence[Replica],
        *,
        hold: bool,
    ) -> None:
        async with AsyncExitStack() as stack:
            for replica in replicas:
                await stack.enter_async_context(self._locks[replica])
            held: Hold | None = None
            if hold and strategy.stands_still:
                held = self._policy.holds.hold(self._deadline)
                stack.callback(held.end)
            await self._switch(strategy, version, replicas)

    async def _switch(
        self, strategy: WeightStrategy, version: WeightFolder, replicas: Sequence[Replica]
    ) -> None:
        began = self._still_since = time.monotonic()
        before = {replica: replica.endpoint.weights for replica in replicas}
        ready = [r for r in replicas if await self._pause(strategy, r)]
        crashpoint.reach("weights.paused")
        sending = time.monotonic()
        found = await strategy.send(version, ready) if ready else []
        crashpoint.reach("weights.sent")
        self.times.sent = time.monotonic() - sending
        await asyncio.gather(
            *(self._conclude(strategy, version, each, before[each.replica]) for each in found)
        )
        if strategy.stands_still:
            self.times.held = time.monotonic() - began

    async def _pause(self, strategy: WeightStrategy, replica: Replica) -> bool:
        """Whether it stands still, if it has to."""
        if not strategy.stands_still:
            return True
        try:
            await replica.pause()
        except WeightsNotTaken as error:
            self._fail(replica, str(error), is_whole=True)
            return False
        replica.endpoint.checked.clear()
        replica.endpoint.weights = None
        return True

    async def _conclude(
        self,
        strategy: WeightStrategy,
        version: WeightFolder,
        found: Acknowledgement,
        before: str | None,
    ) -> None:
        """Checks and switches one replica, or leaves it without calls."""
        replica, endpoint = found.replica, found.replica.endpoint
        is_sampling = False
        try:
            if found.error:
                if found.is_intact:
                    endpoint.weights = before
                    await self._resume(strategy, replica)
                raise WeightsNotTaken(found.error)
            if strategy.stands_still:
                await replica.reset_cache()
                endpoint.weights = version.name
                is_sampling = True
                await self._resume(strategy, replica)
            await self._check(strategy, version, replica)
        except HoldfastError as error:
            if is_sampling:
                endpoint.interrupt(BadAnswer(str(error)))
            self._fail(replica, str(error), is_whole=found.is_intact)
            return
        strategy.switch(version, replica)
        endpoint.weights = version.name
        endpoint.checked.set()
        self._suspects.pop(replica, None)

    async def _resume(self, strategy: WeightStrategy, replica: Replica) -> None:
        if strategy.stands_still:
            await replica.resume()
            self.times.stood_still = time.monotonic() - self._still_since
            crashpoint.reach("weights.resumed")

    async def _check(
        self, strategy: WeightStrategy, version: WeightFolder, replica: Replica
    ) -> None:
        if strategy.stands_still:
            await check_version(replica, version)
        if version.scores is not None:
            model = strategy.model_of(version, replica)
            self.probes[replica.name] = await check_scores(
                replica, version.scores, version=version.name, model=model
            )

    def _fail(self, replica: Replica, why: str, *, is_whole: bool) -> None:
        """The replica gets no more calls. Those that it was working on continue elsewhere, or when
        it is back."""
        endpoint = replica.endpoint
        self._suspects[replica] = why
        if not is_whole:
            endpoint.weights = None
            endpoint.interrupt(EngineUnavailable(why))
        endpoint.checked.set()
        self._report(f"weights: {why}; it gets no calls until it has them")
        endpoint.breaker.trip()

    # --- a replica that failed, or comes back

    async def _bring_up_to_date(self, replica: Replica) -> str | None:
        """Called by the probe of a replica that answers again; why it cannot be used, if so."""
        assert self._version is not None, "a version is expected"
        version = self._version
        if replica not in self._choices:
            try:
                choice = await self._choose(replica)
                await choice.strategy.start([replica])
            except HoldfastError as error:
                return str(error)
        strategy = self._choices[replica].strategy
        if (why := await self._must_restart(strategy, replica)) is not None:
            return why
        if replica not in self._suspects and await strategy.has(version, replica):
            return await self._recheck(strategy, version, replica)
        await self._update(strategy, version, [replica], hold=False)
        return await self._refuse(replica)

    async def _recheck(
        self, strategy: WeightStrategy, version: WeightFolder, replica: Replica
    ) -> str | None:
        """It says that it has the version."""
        try:
            await self._check(strategy, version, replica)
        except HoldfastError as error:
            self._suspects[replica] = str(error)
            return str(error)
        strategy.switch(version, replica)
        replica.endpoint.weights = version.name
        return None

    async def _must_restart(self, strategy: WeightStrategy, replica: Replica) -> str | None:
        """Why the replica must be restarted first; None if it need not, or has been."""
        if strategy.mends(replica) or replica not in self._suspects:
            return None
        told = await replica.endpoint.version()
        if told is not None and told not in (*self._policy.published, UNFINISHED):
            return None  # Weights that nobody published: those that it was started with.
        why = f"{self._suspects[replica]}; it has to be started anew"
        if self._restart is not None:
            await self._restart(replica.endpoint)
        elif self._is_first:  # Later, it is waited for until somebody does.
            replica.endpoint.breaker.abandon(why)
        return why

    async def _refuse(self, replica: Replica) -> str | None:
        """After it was sent the version again; why it did not take it, if so."""
        if (why := self._suspects.get(replica)) is None:
            return None
        self._refusals[replica] = self._refusals.get(replica, 0) + 1
        if self._refusals[replica] < MAX_SENDS:
            return why
        if self._restart is None or replica in self._restarted:
            replica.endpoint.breaker.abandon(f"{replica.name} is given up: {why}")
            return why
        self._restarted.add(replica)
        self._refusals[replica] = 0
        self._report(f"weights: {why}; {replica.name} is started anew")
        await self._restart(replica.endpoint)
        return why

    async def aclose(self) -> None:
        for endpoint in self._policy.endpoints:
            endpoint.bring_up_to_date = None
        for strategy in self._strategies:
            await strategy.aclose()
