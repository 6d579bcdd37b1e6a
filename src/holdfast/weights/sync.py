"""WeightSync: gives every replica of a policy a version of the weights.

WeightSync prepares, sends and checks a version. A replica gets a version completely or not at all.
A record tells the state of each replica, and every process that samples follows the records
(`policy.client.weight_gate`). No call begins at a replica whose weights are being sent, and tokens
of wrong weights are dropped. Engines keep the requests in flight.

If a replica did not take a version, the probe of its circuit breaker sends the version again. If
that fails too, a replica that Holdfast started is restarted, and any other replica is given up with
its root cause. A replica that comes back, or whose weights are wanted, gets the newest version. No
engine stays paused: a sync that gives up resumes it, and if the trainer dies, its successor does.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from functools import partial

from msgspec import Struct, structs

from holdfast import crashpoint
from holdfast.policy.client.circuit_breaker import wait_for_any
from holdfast.policy.client.endpoint import Endpoint
from holdfast.policy.client.probe import UNREACHABLE, describe_error
from holdfast.policy.client.replicas import EnginePolicy
from holdfast.policy.client.weight_gate import WeightGate, WeightRecords
from holdfast.policy.dialects.dialect import UNFINISHED
from holdfast.records.errors import (
    EndpointDown,
    EngineUnavailable,
    HoldfastError,
    UsageError,
    WeightsDoubted,
)
from holdfast.records.samples.replica_weights import (
    ReplicaWeights,
    WeightState,
    newest_by_replica,
)
from holdfast.rollout.threads.contain import end_task, to_its_end
from holdfast.weights.probe import ProbeResult, check_scores, check_version
from holdfast.weights.records import MemoryRecords
from holdfast.weights.replica import EngineKind, Replica
from holdfast.weights.strategies.strategy import (
    AUTO,
    Acknowledgement,
    Choice,
    WeightStrategy,
    check_alike,
    choose,
    describe,
)
from holdfast.weights.version import WeightFolder, WeightsNotTaken

MAX_SENDS = 3
"""How often a version is sent to a replica that answers but does not take the version."""
LOOK_SECONDS = 1.0
Restart = Callable[[Endpoint], Awaitable[None]]


class UpdateTimes(Struct):
    """How long the last update took, in seconds."""

    prepared: float = 0.0
    sent: float = 0.0
    """The time of the transfer alone."""
    stood_still: float = 0.0
    """The longest time for which a replica sampled nothing for its requests in flight."""
    held: float = 0.0
    """The time during which no new call could begin."""


class WeightSync:
    """Gives replicas new weights. Call `start` once, and then `publish` for each version. All calls
    must come from the same event loop."""

    def __init__(
        self,
        policy: EnginePolicy,
        strategies: Sequence[WeightStrategy],
        *,
        wanted: str = AUTO,
        restart: Restart | None = None,
        report: Callable[[str], None] = lambda line: None,
    ):
        """`strategies` are in the order of preference. `restart` restarts a replica that Holdfast
        started. `report` gets lines of text."""
        self._policy = policy
        self._strategies = tuple(strategies)
        self._wanted = wanted
        self._restart = restart
        self._report = report
        self._records: WeightRecords = MemoryRecords()
        self._replicas = {endpoint: Replica(endpoint) for endpoint in policy.endpoints}
        self._choices: dict[Replica, Choice] = {}
        self._locks = {replica: asyncio.Lock() for replica in self._replicas.values()}
        self._suspects: dict[Replica, str] = {}
        """Replicas whose weights may be incomplete, each with the reason."""
        self._refusals: dict[Replica, int] = {}
        self._restarted: set[Replica] = set()
        """Replicas that were restarted for the current version. A replica is restarted at most once
        per version."""
        self._version: WeightFolder | None = None
        self._sent: set[str] = set()
        self._watching: asyncio.Task[None] | None = None
        self._is_first = self._is_blind = False
        self._fingerprint: tuple[WeightFolder | None, str] = None, ""
        self.times = UpdateTimes()
        self._still_since = 0.0
        self.probes: dict[str, ProbeResult] = {}
        """For each replica's name, the result of the last comparison with it."""

    # --- before the first version

    async def start(self) -> None:
        """Chooses how each replica gets its weights. Raises `UsageError` if a replica has no way to
        get them, and `EndpointDown` if a replica cannot be reached, because its ways are then
        unknown."""
        up = [r for e, r in self._replicas.items() if e.introduce is None]
        try:
            choices = await asyncio.gather(*(self._choose(replica) for replica in up))
            check_alike(up)
            for strategy in self._used():
                await strategy.start(self._by(strategy))
        except UsageError as error:
            for replica in up:
                await _check_up(replica, error)
            raise
        for line in describe(choices):
            self._report(line)
        for endpoint, replica in self._replicas.items():
            endpoint.look_at_weights = partial(self._look_at, replica)
        self.record_in(self._records)

    def record_in(self, records: WeightRecords) -> None:
        """Records the replicas' weights in `records` from now on."""
        self._records = records
        patience = self._policy.patience
        self._policy.gate_by(WeightGate(records, patience=patience, is_sender=True))

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
        """Publishes the first version. Unlike `publish`, raises `WeightsNotTaken` if any reachable
        engine does not take the version, so that a wrong setup is refused before anything is
        sampled."""
        self._is_first = True
        try:
            await self.publish(version)
        finally:
            self._is_first = False
        for why in self._suspects.values():
            raise WeightsNotTaken(why)

    async def adopt(self, version: WeightFolder) -> None:
        """Checks engines that were started with the version, without sending the version."""
        for strategy in self._used():
            await strategy.prepare(version)
        self._version = version
        self._watch()
        for replica, choice in self._choices.items():
            await replica.endpoint.ask_incarnation()
            await self._check(choice.strategy, version, replica)
            await self._note(replica, WeightState.CHECKED, version)
            replica.endpoint.weights = version.name

    async def publish(self, version: WeightFolder) -> None:
        """Gives the version to the replicas. On return, every replica that gets calls has the
        version, and calls that begin later are sampled with it. Raises `WeightsNotTaken` if no
        replica took the version. If cancelled, ends the update first."""
        began = time.monotonic()
        for strategy in self._used():
            await strategy.prepare(version)
        if any(c.strategy.fingerprints(r) for r, c in self._choices.items()):
            await self._fingerprint_of(version)  # Now, while the engines still sample.
        self._version = version
        self._sent.add(version.name)
        self._watch()
        self._refusals.clear()
        self._restarted.clear()
        self.times = UpdateTimes(prepared=time.monotonic() - began)
        crashpoint.reach("weights.prepared")
        await to_its_end(self._update_all(version))
        await self._wait_until_taken(version)
        await self._tidy()
        crashpoint.reach("weights.switched")

    @property
    def dtypes(self) -> list[str]:
        """Returns the data type of each engine's model; "" for an engine that does not report
        it."""
        replicas = self._replicas.values()
        return [r.dtype or ("float32" if r.kind is EngineKind.EMBEDDED else "") for r in replicas]

    def in_use(self) -> set[str]:
        """Returns the names of versions whose files an engine may still read."""
        return {name for strategy in self._used() for name in strategy.in_use()}

    async def _update_all(self, version: WeightFolder) -> None:
        groups = []
        for strategy in self._used():
            up = [r for r in self._by(strategy) if r.endpoint.breaker.is_passing]
            if up:
                groups.append(self._update(strategy, version, up))
        await asyncio.gather(*groups)

    async def _wait_until_taken(self, version: WeightFolder) -> None:
        """Waits until at least one replica has the version. The other replicas get no calls until
        they have it."""
        while not any(e.weights == version.name for e in self._policy.endpoints):
            left = [e.breaker for e in self._policy.endpoints if not e.breaker.is_abandoned]
            if not left:
                reasons = {e.breaker.reason_down for e in self._policy.endpoints}
                raise WeightsNotTaken("; ".join(sorted(reasons)))
            await wait_for_any(left)

    async def _tidy(self) -> None:
        """Removes old data from the engines after an update. A failure is reported, and is tried
        again after the next version."""
        for replica, choice in self._choices.items():
            if replica.endpoint.breaker.is_passing:
                try:
                    await choice.strategy.tidy(replica)
                except WeightsNotTaken as error:
                    self._report(f"weights: {error}")

    # --- one update of some replicas

    async def _update(
        self, strategy: WeightStrategy, version: WeightFolder, replicas: Sequence[Replica]
    ) -> None:
        async with AsyncExitStack() as stack:
            for replica in replicas:
                await stack.enter_async_context(self._locks[replica])
            await self._switch(strategy, version, replicas)

    async def _switch(
        self, strategy: WeightStrategy, version: WeightFolder, replicas: Sequence[Replica]
    ) -> None:
        began = self._still_since = time.monotonic()
        before = {replica: replica.endpoint.weights for replica in replicas}
        ready = [r for r in replicas if await self._begin(strategy, version, r)]
        crashpoint.reach("weights.paused")
        sending = time.monotonic()
        answers = await strategy.send(version, ready) if ready else []
        crashpoint.reach("weights.sent")
        self.times.sent = time.monotonic() - sending
        await asyncio.gather(
            *(self._conclude(strategy, version, each, before[each.replica]) for each in answers)
        )
        if strategy.stands_still:
            self.times.held = time.monotonic() - began

    async def _begin(
        self, strategy: WeightStrategy, version: WeightFolder, replica: Replica
    ) -> bool:
        """Records that weights are being sent to a replica, and pauses its engine if the strategy
        needs that. If a second transfer can repair half-loaded weights, the engine's weights get a
        name that no version has until the transfer ends. Returns whether the weights can be
        sent."""
        endpoint = replica.endpoint
        try:
            await endpoint.ask_incarnation()
            if not strategy.stands_still:
                return True  # No request uses the new name before it is recorded.
            await self._note(replica, WeightState.SENDING, version)
            crashpoint.reach("weights.noted")
            await replica.pause()
            if strategy.mends(replica):
                await replica.set_aside()
        except HoldfastError as error:
            await self._fail(replica, str(error), is_whole=True)
            return False
        endpoint.weights = None
        return True

    async def _conclude(
        self,
        strategy: WeightStrategy,
        version: WeightFolder,
        answer: Acknowledgement,
        before: str | None,
    ) -> None:
        """Checks one replica after a transfer. A replica that fails the check gets no calls."""
        replica, endpoint = answer.replica, answer.replica.endpoint
        is_sampling = False
        try:
            if answer.error:
                if answer.is_intact:
                    await self._give_back(strategy, replica, before)
                raise WeightsNotTaken(answer.error)
            if strategy.stands_still:
                await replica.reset_cache()
                endpoint.weights = version.name
                is_sampling = True
                await self._resume(strategy, replica)
            await self._check(strategy, version, replica, was_sent=True)
        except HoldfastError as error:
            if is_sampling:
                endpoint.interrupt(WeightsDoubted(str(error)))
            await self._fail(replica, str(error), is_whole=answer.is_intact)
            return
        await self._accept(strategy, version, replica)

    async def _give_back(
        self, strategy: WeightStrategy, replica: Replica, before: str | None
    ) -> None:
        """Resumes a replica with its previous weights. Its requests continue."""
        if strategy.stands_still:
            if before is not None and strategy.mends(replica):
                await replica.set_aside(before)
            replica.endpoint.weights = before
        await self._resume(strategy, replica)

    async def _accept(
        self, strategy: WeightStrategy, version: WeightFolder, replica: Replica
    ) -> None:
        """Records that a replica has passed the check, and makes calls to it use the version."""
        model = strategy.model_of(version, replica)
        await self._note(replica, WeightState.CHECKED, version, model=model)
        strategy.switch(version, replica)
        replica.endpoint.weights = version.name
        self._suspects.pop(replica, None)
        crashpoint.reach("weights.checked")

    async def _resume(self, strategy: WeightStrategy, replica: Replica) -> None:
        if strategy.stands_still:
            await replica.resume()
            self.times.stood_still = time.monotonic() - self._still_since
            crashpoint.reach("weights.resumed")

    async def _check(
        self,
        strategy: WeightStrategy,
        version: WeightFolder,
        replica: Replica,
        *,
        was_sent: bool = False,
    ) -> None:
        """Raises `WeightsNotTaken` if the replica has other weights than the version. If the
        replica computes a fingerprint of the weights that it loaded, the fingerprint must fit.
        Otherwise its logprobs must be nearer to this version than to the previous one. In both
        cases, its logprobs must be near to this version."""
        if strategy.stands_still:
            await check_version(replica, version)
        is_proven = strategy.fingerprints(replica) and await self._has_loaded(
            version, replica, was_sent=was_sent
        )
        if (scores := version.scores) is None:
            return
        if is_proven:
            scores = structs.replace(scores, before=())
        model = strategy.model_of(version, replica)
        result = await check_scores(replica, scores, version=version.name, model=model)
        self.probes[replica.name] = result
        if result.is_blind and not self._is_blind:
            self._is_blind = True
            self._report(
                f"weights: {version.name} and the version before have the same logprobs to within "
                f"the noise at {replica.name}: that it took them is its word alone; a vLLM with "
                "the worker extension compares what it loaded (docs/weights.md)"
            )

    async def _has_loaded(self, version: WeightFolder, replica: Replica, *, was_sent: bool) -> bool:
        """Returns whether the replica's fingerprint shows that it has the version. Raises
        `WeightsNotTaken` if the fingerprint differs from the version's. Returns False if there is
        nothing to compare, because the replica has loaded nothing since its start, and was sent
        nothing."""
        loaded = await replica.loaded()
        if not loaded and not was_sent:
            return False
        expected = await self._fingerprint_of(version)
        if loaded != expected:
            raise WeightsNotTaken(
                f"{replica.name} took {version.name} and loaded others: their fingerprint is "
                f"{loaded or 'none'}, not {expected}"
            )
        return True

    async def _fingerprint_of(self, version: WeightFolder) -> str:
        if self._fingerprint[0] is not version:
            self._fingerprint = version, await asyncio.to_thread(_fingerprint_of, version)
        return self._fingerprint[1]

    # --- what is recorded

    async def _note(
        self,
        replica: Replica,
        state: WeightState,
        version: WeightFolder,
        *,
        model: str = "",
        why: str = "",
    ) -> None:
        """Records a new state of a replica. The end of a transfer replaces the record of its
        beginning; any other state becomes a new record."""
        endpoint = replica.endpoint
        while True:
            last = newest_by_replica(await self._records.read()).get(endpoint.url)
            record = ReplicaWeights(
                endpoint.url, state, endpoint.incarnation, version.name, model, why, 1
            )
            if last is not None:
                goes_on = last.state is WeightState.SENDING and state is not WeightState.SENDING
                number = last.number if goes_on else last.number + 1
                record = structs.replace(record, number=number)
            if await self._records.note(record):
                return

    async def _fail(self, replica: Replica, why: str, *, is_whole: bool) -> None:
        """Records that a replica failed. The replica gets no calls until it has the version. If its
        weights may be incomplete (`is_whole` is False), its requests are interrupted; they continue
        at another replica, or at this one when it is back."""
        endpoint = replica.endpoint
        self._suspects[replica] = why
        assert self._version is not None, "a version was sent"
        await self._note(replica, WeightState.FAILED, self._version, why=why)
        if not is_whole:
            endpoint.weights = None
            endpoint.interrupt(EngineUnavailable(why))
        self._report(f"weights: {why}; it gets no calls until it has them")
        endpoint.breaker.trip()

    async def _give_up(self, replica: Replica, why: str) -> None:
        """Gives a replica up permanently. Callers that wait for it get an error."""
        replica.endpoint.breaker.abandon(why)
        await self._resume_left(replica)

    async def _resume_left(self, replica: Replica) -> None:
        if replica.is_paused:
            try:
                await replica.resume()
            except WeightsNotTaken as error:
                self._report(f"weights: {error}; it may be left paused: POST its /resume")

    # --- a replica that failed, comes back, or has unknown weights

    def _watch(self) -> None:
        if self._watching is None:
            self._watching = asyncio.create_task(self._see_wants(), name="wanted weights")

    async def _see_wants(self) -> None:
        """Watches the records until cancelled. If a record says that a replica's weights are
        wanted, trips the replica's circuit breaker, which stops all calls to the replica. The
        breaker's probe then sends the weights."""
        changes = self._records.changes
        while True:
            seen = changes.count
            newest = newest_by_replica(await self._records.read())
            for endpoint in self._policy.endpoints:
                record = newest.get(endpoint.url)
                if record is not None and record.state is WeightState.WANTED:
                    endpoint.breaker.trip()
            await changes.wait(seen, timeout=LOOK_SECONDS)

    async def _look_at(self, replica: Replica, _: Sequence[str]) -> str | None:
        """Brings a replica to the newest version. The circuit breaker's probe calls this method
        when the replica answers. Returns None, or the reason why the replica cannot be used."""
        if self._version is None:
            return None  # It will get the first version soon.
        version = self._version
        why = await self._bring_up_to_date(version, replica)
        if why is None and self._version is not version:
            return f"it has the weights {version.name!r}; the run is at {self._version.name!r}"
        return why

    async def _bring_up_to_date(self, version: WeightFolder, replica: Replica) -> str | None:
        if replica not in self._choices:
            try:
                choice = await self._choose(replica)
                await choice.strategy.start([replica])
            except HoldfastError as error:
                return str(error)
        strategy = self._choices[replica].strategy
        await replica.endpoint.ask_incarnation()
        if (why := await self._must_restart(strategy, replica)) is not None:
            return why
        if replica not in self._suspects and await strategy.has(version, replica):
            return await self._recheck(strategy, version, replica)
        await self._update(strategy, version, [replica])
        return await self._refuse(replica)

    async def _recheck(
        self, strategy: WeightStrategy, version: WeightFolder, replica: Replica
    ) -> str | None:
        """Checks a replica that reports that it has the version. Returns None if it has the
        version, or the reason why the check failed."""
        try:
            await self._resume_left(replica)
            await self._check(strategy, version, replica)
        except HoldfastError as error:
            self._suspects[replica] = str(error)
            await self._note(replica, WeightState.FAILED, version, why=str(error))
            return str(error)
        newest = newest_by_replica(await self._records.read()).get(replica.endpoint.url)
        is_known = newest is not None and newest.is_checked and newest.version == version.name
        if newest is None or not is_known or not newest.is_of(replica.endpoint.incarnation):
            await self._accept(strategy, version, replica)
        return None

    async def _must_restart(self, strategy: WeightStrategy, replica: Replica) -> str | None:
        """Returns why the replica must be restarted before it can take a version, or None if it
        need not be. If it must be restarted, restarts it if possible."""
        if strategy.mends(replica) or replica not in self._suspects:
            return None
        version = await replica.endpoint.version()
        if version is not None and version not in (*self._sent, UNFINISHED):
            # The replica has the weights that it was started with, not ones that it was sent.
            return None
        why = f"{self._suspects[replica]}; it has to be started anew"
        if self._restart is not None:
            await self._restart(replica.endpoint)
        elif self._is_first:
            # Only in the first update. Later, calls wait until the replica has its weights.
            await self._give_up(replica, why)
        return why

    async def _refuse(self, replica: Replica) -> str | None:
        """Returns why the replica did not take the version that was sent again, or None if it did.
        After several failures, the replica is restarted or given up."""
        if (why := self._suspects.get(replica)) is None:
            return None
        self._refusals[replica] = self._refusals.get(replica, 0) + 1
        if self._refusals[replica] < MAX_SENDS:
            return why
        if self._restart is None or replica in self._restarted:
            await self._give_up(replica, f"{replica.name} is given up: {why}")
            return why
        self._restarted.add(replica)
        self._refusals[replica] = 0
        self._report(f"weights: {why}; {replica.name} is started anew")
        await self._restart(replica.endpoint)
        return why

    async def aclose(self) -> None:
        if self._watching is not None:
            await end_task(self._watching)
        for endpoint, replica in self._replicas.items():
            endpoint.look_at_weights = None
            await self._resume_left(replica)
        for strategy in self._strategies:
            await strategy.aclose()


async def _check_up(replica: Replica, error: UsageError) -> None:
    try:
        await replica.endpoint.models()
    except UNREACHABLE as gone:
        raise EndpointDown(f"{replica.name} went away: {describe_error(gone)}") from error


def _fingerprint_of(version: WeightFolder) -> str:
    from holdfast.weights.content import fingerprint_of  # The module imports torch.

    return fingerprint_of(version.path)
