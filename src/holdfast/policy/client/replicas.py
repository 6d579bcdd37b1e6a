"""The replicas of one model, as one policy.

A request goes to the replica that has its prefix in the cache, unless that replica is busier than
the others. A replica that fails gets no calls until it works again with the same weights as the
others. If only some replicas are down, no call fails. If all replicas are down, calls and new tasks
wait until one is back or the run's patience ends.
"""

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from weakref import ReferenceType, ref

from holdfast.clock import Clock, SystemClock
from holdfast.policy.client.call import SampleCall
from holdfast.policy.client.circuit_breaker import Downtime, wait_for_any
from holdfast.policy.client.connections import Connections
from holdfast.policy.client.discovery import (
    FIRST_SAMPLE_SECONDS,
    discover,
    logprobs_mode_of,
    served_models,
)
from holdfast.policy.client.endpoint import PROBE_SECONDS, Endpoint
from holdfast.policy.client.logprobs_probe import Likeness, likeness_of, why_different
from holdfast.policy.client.supported import check_run, check_taken
from holdfast.policy.client.weight_gate import WeightGate
from holdfast.policy.dialects import DIALECTS
from holdfast.policy.dialects.dialect import Kind, Seeds, ServedModel
from holdfast.policy.hold import CallHolds
from holdfast.policy.policy import Completion, Request
from holdfast.policy.providers import base_url
from holdfast.policy.retry import RetryPolicy
from holdfast.records.encoding.declared import checks_arguments
from holdfast.records.errors import (
    EndpointDown,
    EngineUnavailable,
    HoldfastError,
    UsageError,
)
from holdfast.records.samples.logprobs import PROCESSING, LogprobsMode, worst
from holdfast.records.sampling import Sampling

MAX_HOMES = 100_000
MAX_LOAD_RATIO = 1.25
"""The load at which another replica is chosen, as a multiple of the average load."""
DRAIN_POLL_SECONDS = 0.05
PAUSED_POLL_SECONDS = 0.25
PAUSED = (
    "is paused: its trainer changes its weights, or ended in the middle; the same `holdfast train` "
    "resumes it, and so does POST /resume"
)
CLOSED = (
    "the policy is closed (its `async with` block is over, or `aclose` was called): make another "
    "one, or use it before that"
)
IN_USE = "another event loop is still using the policy: make one for each loop that runs at once"
ALIKE = f"start them alike ({PROCESSING})"


class EnginePolicy:
    """One model, served by one or more replicas. All trajectories of one loop share it.

    Several loops may use it one after another, for example several calls of `asyncio.run`.
    Connections, outages and holds belong to a loop and are made anew for each. A closed policy
    cannot be used again.
    """

    @checks_arguments(own="dialect")
    def __init__(
        self,
        urls: str | Sequence[str],
        model: str,
        *,
        dialect: Kind | str | None = None,
        api_key: str | None = None,
        retry: RetryPolicy | None = None,
        patience: float = 900.0,
        connections: int | None = None,
        clock: Clock | None = None,
        notify: Callable[[str], None] | None = None,
        is_trained: bool = False,
    ):
        """`notify` gets a line for people when a replica goes down or comes back, and for each
        caveat of the engine. `connections` is the largest number of requests at once to one
        address. By default, it follows from the limit of open files. `is_trained` says that a
        training sends the replicas their weights. Their weights may differ before that, so they are
        not compared."""
        self.model = model
        self._is_trained = is_trained
        self.patience, self._connections = patience, connections
        self.notify = notify or (lambda line: None)
        self.retry = retry or RetryPolicy()
        self.clock = clock or SystemClock()
        self._dialect = None if dialect is None else _parse_kind(dialect)
        addresses = [urls] if isinstance(urls, str) else list(urls)
        if not addresses:
            raise UsageError("a policy needs at least one address")
        self._api_key = api_key
        self._addresses = len(addresses)
        self.endpoints = [self._endpoint(url) for url in addresses]
        if len({endpoint.url for endpoint in self.endpoints}) < len(self.endpoints):
            raise UsageError("the policy names the same address twice")
        self._is_closed = False
        self._loop: ReferenceType[asyncio.AbstractEventLoop] | None = None
        """The event loop that uses the policy."""
        self._homes: OrderedDict[str, Endpoint] = OrderedDict()
        self._downtime = Downtime([replica.breaker for replica in self.endpoints], self.clock)
        self.holds = CallHolds()
        """While a hold is in effect, no try begins and no task is admitted."""
        self.gate: WeightGate | None = None
        """Decides which replicas get calls, if a training sends them their weights."""

    def _endpoint(self, url: str) -> Endpoint:
        endpoint = Endpoint(
            url,
            self.model,
            api_key=self._api_key,
            retry=self.retry,
            patience=self.patience,
            new_connections=self._new_connections,
            clock=self.clock,
            dialect=DIALECTS[self._dialect or Kind.VLLM],
        )
        endpoint.breaker.notify = self.notify
        return endpoint

    def _new_connections(self) -> Connections:
        return Connections(
            self._connections, addresses=self._addresses, notify=lambda line: self.notify(line)
        )

    def sibling(
        self,
        urls: Sequence[str],
        model: str,
        *,
        api_key: str | None = None,
        retry: RetryPolicy | None = None,
        patience: float | None = None,
    ) -> "EnginePolicy":
        """Returns a policy for another model or other replicas. By default, it has this policy's
        retries and patience. It gets this policy's key only if all its addresses are among this
        policy's."""
        if {endpoint.url for endpoint in self.endpoints} >= {base_url(url) for url in urls}:
            api_key = api_key or self._api_key
        return EnginePolicy(
            urls,
            model,
            api_key=api_key,
            retry=retry or self.retry,
            patience=self.patience if patience is None else patience,
            connections=self._connections,
            clock=self.clock,
            notify=self.notify,
            is_trained=self._is_trained,
        )

    # --- before the work

    async def check(self) -> None:
        """Discovers each replica. A replica that is down is left for later if others are up."""
        if self._is_closed:
            raise UsageError(CLOSED)
        if not self._enter_loop():
            raise UsageError(IN_USE)
        for endpoint in self.endpoints:
            endpoint.breaker.retry_outage()
        found = await asyncio.gather(
            *(self._discover(replica) for replica in self.endpoints), return_exceptions=True
        )
        errors = [error for error in found if isinstance(error, BaseException)]
        for error in errors:
            if not isinstance(error, EndpointDown) or len(errors) == len(found):
                raise error
        for endpoint, outcome in zip(self.endpoints, found, strict=True):
            endpoint.recheck = partial(self._recheck, endpoint)
            if outcome is not None:
                endpoint.introduce = partial(self._introduce, endpoint)
                endpoint.breaker.trip()
        self._agree()
        for endpoint in self.endpoints:
            if endpoint.introduce is None and endpoint.caveat:
                self.notify(endpoint.caveat)
        await self._compare_models()

    async def _discover(self, endpoint: Endpoint) -> None:
        """Discovers a replica. Waits first while a trained engine is paused, because a paused
        engine samples nothing and cannot be measured."""
        began, is_reported = self.clock.elapsed(), False
        while self._is_trained and await endpoint.is_paused():
            if self.clock.elapsed() - began >= self.patience:
                raise EndpointDown(f"{endpoint.name} {PAUSED}")
            if not is_reported:
                self.notify(f"{endpoint.name} {PAUSED}; waiting for it")
            is_reported = True
            await self.clock.sleep(PAUSED_POLL_SECONDS)
        await discover(endpoint, self._dialect)

    async def _compare_models(self) -> None:
        """Raises `UsageError` for replicas that are up and serve different models."""
        up = [replica for replica in self.endpoints if replica.breaker.is_passing]
        if len(up) < 2 or self._is_trained:
            return
        numbers = await asyncio.gather(
            *(likeness_of(replica, seconds=FIRST_SAMPLE_SECONDS) for replica in up)
        )
        for replica, own in zip(up, numbers, strict=True):
            if (why := self._why_another_model(own, numbers[0], of=up[0])) is not None:
                raise UsageError(f"the replicas differ: {replica.name}: {why}")

    async def _compare_model(self, endpoint: Endpoint) -> str | None:
        """Returns why a new or returned replica serves another model than the other replicas, or
        None."""
        others = (other for other in self.endpoints if other is not endpoint)
        like = next((other for other in others if other.breaker.is_passing), None)
        # If a trainer sends weights to the replica, the trainer also checks them.
        if like is None or self._is_trained or self.gate is not None:
            return None
        own, others_own = await asyncio.gather(
            *(likeness_of(replica, seconds=PROBE_SECONDS) for replica in (endpoint, like))
        )
        return self._why_another_model(own, others_own, of=like)

    def _why_another_model(self, one: Likeness, other: Likeness, *, of: Endpoint) -> str | None:
        if (why := why_different(one, other)) is None:
            return None
        return (
            f"its {self.model!r} is another model than that of {of.name}: {why}; serve the same "
            "weights on both, or name one of them"
        )

    def _enter_loop(self) -> bool:
        """Prepares for the running event loop. Makes new sessions and locks if the loop has
        changed. Returns False if the old loop still uses this policy."""
        loop = asyncio.get_running_loop()
        before = None if self._loop is None else self._loop()
        if before is not loop and self._loop is not None:
            if before is not None and not before.is_closed() and self._is_in_use:
                return False
            self.holds.change_loop()
            for endpoint in self.endpoints:
                endpoint.change_loop()
        self._loop = ref(loop)
        return True

    @property
    def _is_in_use(self) -> bool:
        return self.holds.is_in_use or any(endpoint.is_in_use for endpoint in self.endpoints)

    async def _introduce(self, endpoint: Endpoint) -> str | None:
        """Discovers a replica that was down at the start. Returns why it cannot be used, or
        None."""
        like = next(replica for replica in self.endpoints if replica.introduce is None)
        try:
            await discover(endpoint, self._dialect)
        except HoldfastError as error:
            return str(error)
        if endpoint.caveat:
            self.notify(endpoint.caveat)
        if endpoint.dialect.has_tokens != like.dialect.has_tokens:
            return f"it speaks {endpoint.dialect.kind.value}, the others {like.dialect.kind.value}"
        mode = endpoint.logprobs_mode
        if mode is LogprobsMode.UNKNOWN is not like.logprobs_mode:
            return "of which distribution its logprobs are could not be measured"
        if (why := self._why_apart(endpoint, mode)) is not None:
            return why
        return await self._compare_model(endpoint)

    async def _recheck(self, endpoint: Endpoint, model: ServedModel) -> str | None:
        """Checks a replica that is back, because it may have restarted with other options. Returns
        why it cannot be used, or None."""
        try:
            mode = await logprobs_mode_of(endpoint, model, seconds=PROBE_SECONDS)
        except EngineUnavailable as error:
            return str(error)
        if mode is LogprobsMode.UNKNOWN:
            return None
        if (why := self._why_apart(endpoint, mode)) is not None:
            return why
        if mode is not endpoint.logprobs_mode:
            before, endpoint.logprobs_mode = endpoint.logprobs_mode, mode
            self.notify(f"{endpoint.name} is back with {mode} logprobs (before: {before})")
        return await self._compare_model(endpoint)

    def _why_apart(self, endpoint: Endpoint, mode: LogprobsMode) -> str | None:
        """Returns why logprobs of this mode cannot be mixed with the logprobs of the replicas that
        are up, or None."""
        for other in self.endpoints:
            if (
                other is not endpoint
                and other.breaker.is_passing
                and _differ(other.logprobs_mode, mode)
            ):
                return (
                    f"its logprobs are {mode}, those of {other.name} {other.logprobs_mode}; {ALIKE}"
                )
        return None

    def _agree(self) -> None:
        """Raises an error unless all replicas that are up fit together. A rollout has tokens either
        from all replicas or from none."""
        up = [replica for replica in self.endpoints if replica.breaker.is_passing]
        if not up:
            raise EndpointDown(self.endpoints[0].breaker.reason_down)
        kinds = sorted({replica.dialect.kind.value for replica in up})
        if len({replica.dialect.has_tokens for replica in up}) > 1:
            raise UsageError(f"the replicas differ: {', '.join(kinds)}; name one with --dialect")
        for endpoint in up:
            if (why := self._why_apart(endpoint, endpoint.logprobs_mode)) is not None:
                raise UsageError(f"the replicas differ: {endpoint.name}: {why}")
        for endpoint in self.endpoints:
            if endpoint not in up:
                endpoint.dialect, endpoint.described = up[0].dialect, up[0].described
                endpoint.seeds = up[0].seeds

    @property
    def has_tokens(self) -> bool:
        """Returns whether the policy's samples can be used for training."""
        return self.endpoints[0].dialect.has_tokens

    def check_sampling(self, sampling: Sampling) -> None:
        """Raises `Unsupported` if a replica does not support the sampling. Call it after
        `check`."""
        for endpoint in self.endpoints:
            check_run(sampling, endpoint)

    async def check_taken(self, sampling: Sampling) -> None:
        """Asks the discovered replicas whether they accept the sampling's parameters. Raises
        `Unsupported` for a parameter that a replica refuses. Call it after `check`."""
        for endpoint in self.endpoints:
            if endpoint.introduce is None:
                await check_taken(sampling, endpoint)

    @property
    def logprobs_mode(self) -> LogprobsMode:
        """Returns the distribution of the replicas' logprobs. It is known after `check`."""
        return worst(
            endpoint.logprobs_mode for endpoint in self.endpoints if endpoint.introduce is None
        )

    @property
    def seeds(self) -> Seeds:
        """Returns the effect of a seed on the replicas. It is known after `check`."""
        return self.endpoints[0].seeds

    async def ready(self) -> None:
        self._enter_loop()
        await self.holds.wait()
        await self._usable()

    @property
    def seconds_down(self) -> float:
        shut = 0.0 if self.gate is None else self.gate.seconds_shut
        return self._downtime.seconds + self.holds.seconds_held + shut

    # --- the work

    async def sample(self, request: Request) -> Completion:
        self._enter_loop()
        return await SampleCall(request, self).complete()

    async def choose(self, request: Request, *, avoid: Endpoint | None = None) -> Endpoint:
        """Returns the replica for one try of a request. Avoids `avoid` if another replica is up."""
        await self.holds.wait()
        up = await self._usable()
        if len(up) == 1:
            return up[0]
        return self._best(request, [replica for replica in up if replica is not avoid] or up)

    async def _usable(self) -> list[Endpoint]:
        """Returns the replicas that take calls. Waits until there is at least one."""
        while True:
            await self.available()
            up = [
                endpoint
                for endpoint in self.endpoints
                if endpoint.breaker.is_passing and not endpoint.draining
            ]
            if self.gate is not None and up:
                if admitted := await self.gate.wait(up):
                    return admitted
            elif up:
                return up
            else:
                await self.clock.sleep(DRAIN_POLL_SECONDS)

    def _best(self, request: Request, up: list[Endpoint]) -> Endpoint:
        busy = MAX_LOAD_RATIO * (1 + sum(replica.running for replica in up)) / len(up)
        home = self._homes.get(request.home)
        if home is None or home not in up or home.running > busy:
            ranked = sorted(
                up, key=lambda replica: _rank(request.family, replica.url), reverse=True
            )
            home = next((replica for replica in ranked if replica.running < busy), None)
            home = home or min(up, key=lambda replica: replica.running)
        if request.home:
            self._homes[request.home] = home
            self._homes.move_to_end(request.home)
            if len(self._homes) > MAX_HOMES:
                self._homes.popitem(last=False)
        return home

    async def available(self) -> None:
        """Returns when some replica takes work. Raises `EndpointDown` if no replica ever will."""
        breakers = [endpoint.breaker for endpoint in self.endpoints]
        if len(breakers) == 1:
            await breakers[0].wait_ready()
            return
        while not any(breaker.is_passing and not breaker.is_abandoned for breaker in breakers):
            waited_for = [breaker for breaker in breakers if not breaker.is_abandoned]
            if not waited_for:
                await breakers[0].wait_ready()  # Raises, with the reason.
            await wait_for_any(waited_for)

    def distrust(self, endpoint: Endpoint) -> None:
        # The only replica stays in use. Each call has its own tries, and then fails alone.
        if len(self.endpoints) > 1:
            endpoint.breaker.record_bad_answer()

    # --- weights

    def gate_by(self, gate: WeightGate) -> None:
        """Makes the policy send calls only to replicas that `gate` admits by their recorded
        weights."""
        self.gate = gate
        for endpoint in self.endpoints:
            endpoint.look_at_weights = endpoint.look_at_weights or partial(_look, gate, endpoint)

    # --- draining

    async def drain(self, url: str, *, timeout: float) -> bool:
        """Gives the replica no new calls and waits for its running ones. Returns whether they ended
        in time."""
        endpoint = self._named(url)
        endpoint.draining = True
        started = self.clock.elapsed()
        while endpoint.running:
            if self.clock.elapsed() - started > timeout:
                return False
            await self.clock.sleep(DRAIN_POLL_SECONDS)
        return True

    def admit(self, url: str) -> None:
        """Gives a drained replica calls again."""
        self._named(url).draining = False

    def _named(self, url: str) -> Endpoint:
        for endpoint in self.endpoints:
            if endpoint.url == base_url(url):
                return endpoint
        known = ", ".join(endpoint.name for endpoint in self.endpoints)
        raise UsageError(f"{url} is not a replica of this policy; they are: {known}")

    async def __aenter__(self) -> "EnginePolicy":
        """Returns the policy, which `async with` closes at the end of the block."""
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Closes every client, even if closing one of them fails."""
        self._is_closed = True
        self._enter_loop()
        results = await asyncio.gather(
            *(endpoint.aclose() for endpoint in self.endpoints), return_exceptions=True
        )
        errors = [result for result in results if isinstance(result, BaseException)]
        if errors:
            raise errors[0]


async def only_model(url: str, *, api_key: str | None = None) -> str:
    """Returns the model of an engine that serves exactly one model."""
    policy = EnginePolicy(url, "", api_key=api_key)
    try:
        served = await served_models(policy.endpoints[0])
    finally:
        await policy.aclose()
    served = [model for model in served if not model.is_ours]
    if len(served) != 1:
        names = ", ".join(model.id for model in served) or "none"
        raise UsageError(f"{policy.endpoints[0].name} serves {names}: name one with --model")
    return served[0].id


async def _look(gate: WeightGate, endpoint: Endpoint, names: Sequence[str]) -> str | None:
    await gate.look_again(endpoint, names)
    return None


def _parse_kind(dialect: Kind | str) -> Kind:
    try:
        return Kind(dialect)
    except ValueError:
        known = ", ".join(kind.value for kind in Kind)
        raise UsageError(f"no dialect {dialect!r}; there are: {known}") from None


def _differ(replica: LogprobsMode, other: LogprobsMode) -> bool:
    return replica is not other and LogprobsMode.UNKNOWN not in (replica, other)


def _rank(family: str, url: str) -> bytes:
    return hashlib.blake2b(f"{family}\0{url}".encode(), digest_size=8).digest()
