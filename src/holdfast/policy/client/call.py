"""Tries one sample until it is complete.

All retries of a request are here, under one budget and one deadline. An interrupted try keeps its
tokens, and the next try, on any replica, continues after the last token. If the engine can repeat a
seeded reply only as a whole, the next try may begin anew instead. In an outage the call waits and
does not fail. Rollouts never see a transient error.
"""

import asyncio
import contextlib
import hashlib
from array import array
from functools import cached_property
from typing import TYPE_CHECKING

import aiohttp
from msgspec import structs

from holdfast.policy.client.completion_builder import (
    ABORTED,
    FINISHED,
    CompletionBuilder,
    StopStringSearch,
)
from holdfast.policy.client.endpoint import Endpoint
from holdfast.policy.client.interruptible import Interruptible
from holdfast.policy.client.supported import check_request
from holdfast.policy.dialects.dialect import Seeds
from holdfast.policy.policy import DEADLINE, Completion, Partial, Request
from holdfast.records.encoding.redaction import redact
from holdfast.records.errors import (
    BadAnswer,
    ContextOverflow,
    EngineUnavailable,
    HoldfastError,
    PolicyError,
    Unsupported,
    WeightsDoubted,
)
from holdfast.records.samples.replica_weights import ReplicaWeights

if TYPE_CHECKING:
    from holdfast.policy.client.replicas import EnginePolicy

SAVE_SECONDS = 5.0
SILENCE_SECONDS = 10.0
"""How old a reply's last token may be at the deadline. After a longer silence, the reply counts as
stalled."""
_BUSY = 4.0
"""Multiplies the pause before the next try if the engine is busy (429) and names no time to wait.
"""


class SampleCall:
    """One sample of the policy, with all its tries. Each instance is used for one call of
    `complete`."""

    def __init__(self, request: Request, replicas: "EnginePolicy"):
        self._request = request
        self._replicas = replicas
        self._retry = replicas.retry
        self._clock = replicas.clock
        self._sampled = CompletionBuilder(request)
        self._started = self._clock.elapsed()
        self._down = replicas.seconds_down
        self._tries = 0
        self._failures = 0
        """Failures in a row since the last outage or the last progress."""
        self._outages = 0
        self._last_save = self._started
        self._version: str | None = None
        self._record: ReplicaWeights | None = None
        """The record of the replica's weights when the present try began."""
        self._is_named = False
        """Whether the present try requests its weights by name. No update changes those weights."""
        self._watch: StopStringSearch | None = None
        self._renewals = 0
        """How often the call has dropped all tokens, to sample the reply again with the same
        seed."""
        self._fresh = 0
        """The number of tokens in the present try when its last token came."""
        self._fresh_at = self._started

    async def complete(self) -> Completion:
        failed: Endpoint | None = None
        while True:
            endpoint = await self._replicas.choose(self._request, avoid=failed)
            self._tries += 1
            outages = endpoint.breaker.outages
            try:
                waiting = self._clock.elapsed()
                async with endpoint.connections:
                    self._started += self._clock.elapsed() - waiting
                    await self._try(endpoint)
            except PolicyError as error:
                if not error.retryable:
                    raise
                await self._recover(endpoint, error, outages=outages)
                failed = endpoint
            else:
                endpoint.breaker.record_success()
                return self._sampled.completion(
                    model=self._replicas.model,
                    tries=self._tries,
                    seconds=self._seconds_taken(),
                    dialect=endpoint.dialect.kind,
                )

    # --- one try

    async def _try(self, endpoint: Endpoint) -> None:
        if self._is_whole(endpoint):
            return
        sampled = self._sampled
        if self._must_begin_anew(endpoint):
            self._renewals += 1
            sampled.restart()
        attempt = await self._build_request(endpoint)
        self._version, self._record = endpoint.weights, endpoint.record
        self._is_named = attempt.model != endpoint.model
        sampled.begin(
            attempt.prompt,
            version=self._version,
            is_named=self._is_named,
            logprobs_mode=endpoint.logprobs_mode,
            prompt_json=attempt.prompt_json,
        )
        has_seam = bool(sampled.ids)
        self._watch = StopStringSearch.at_seam(self._request, sampled) if has_seam else None
        try:
            with Interruptible(endpoint, attempt.model):
                if attempt.stream:
                    await self._follow(endpoint, attempt)
                else:
                    await self._receive(endpoint, attempt)
            await self._check_weights(endpoint)
            self._check_end()
        except PolicyError as error:
            is_doubted = await self._is_doubted(endpoint, error)
            if isinstance(error, EngineUnavailable) and self._is_complete() and not is_doubted:
                return  # The connection broke after the last token.
            await self._keep_after(error, endpoint, is_doubted=is_doubted)
            raise
        except asyncio.CancelledError:
            # The run is stopping. The tokens are kept if this is still allowed.
            sampled.interrupt()
            if not self._is_constrained:
                with contextlib.suppress(HoldfastError):
                    await self._save(endpoint, hold=0)
            raise

    async def _check_weights(self, endpoint: Endpoint) -> None:
        """Raises `WeightsDoubted` if it is in doubt which weights sampled the tokens of this
        try."""
        gate = self._replicas.gate
        if gate is not None and self._record is not None:
            await gate.check(endpoint, self._record, self._sampled.fresh_spans)

    async def _counts_now(self, endpoint: Endpoint) -> bool:
        """Returns whether the weights of this try's new tokens are known to be right already. If
        not, this is decided at the end of the try."""
        gate, record = self._replicas.gate, self._record
        if gate is None or record is None or not self._sampled.fresh:
            return True
        return await gate.counts_now(endpoint, record, self._sampled.fresh_spans)

    async def _is_doubted(self, endpoint: Endpoint, error: PolicyError) -> bool:
        """Returns whether it is in doubt which weights sampled a failed try's tokens. Returns False
        after an invalid answer, whose tokens are dropped in any case."""
        if isinstance(error, BadAnswer) or not self._sampled.fresh:
            return False
        try:
            await self._check_weights(endpoint)
        except WeightsDoubted:
            return True
        return False

    @cached_property
    def _is_constrained(self) -> bool:
        """Returns whether the whole reply must come from one request. This is so if the engine
        begins the reply's format, or a count of its tokens, anew with each request."""
        request = self._request
        return (
            request.sampling.json is not False
            or bool(request.structure)
            or request.sampling.starts_anew
        )

    def _is_complete(self) -> bool:
        """Returns whether the reply is complete although its try was interrupted. First looks for a
        stop string across the seam."""
        if self._watch is not None:
            self._watch.found(self._sampled)
        return self._sampled.finish_reason in FINISHED

    async def _keep_after(
        self, error: PolicyError, endpoint: Endpoint, *, is_doubted: bool
    ) -> None:
        """Keeps the tokens of a failed try, or drops them if the answer was invalid, the weights
        are in doubt, or the reply is constrained."""
        partial = self._request.partial
        if not (isinstance(error, BadAnswer) or is_doubted or self._is_constrained):
            self._sampled.interrupt()
            await self._save(endpoint, hold=0)
        elif (taken_back := self._sampled.discard_try()) is not None and partial is not None:
            await partial.save(taken_back)

    def _is_whole(self, endpoint: Endpoint) -> bool:
        """Returns whether the tokens of earlier tries end the reply or leave no room for another
        token. If so, sets the finish reason."""
        sampled = self._sampled
        room, longest = self._request.sampling.max_tokens, endpoint.described.max_model_len
        if longest is not None and endpoint.dialect.has_tokens:
            room = min(room, longest - len(self._request.prompt))
        if sampled.ids and len(sampled.ids) >= room:
            sampled.finish_reason = "length"
        elif sampled.ids and sampled.ids[-1] in self._request.stop_token_ids:
            sampled.finish_reason = "stop"
        return sampled.finish_reason is not None

    def _must_begin_anew(self, endpoint: Endpoint) -> bool:
        """Returns whether to drop the tokens of an interrupted try although the reply could
        continue.

        If the engine applies a seed to a whole request, only a whole request gives the tokens of an
        uninterrupted run. So a request with a seed is repeated from its beginning, unless its
        tokens are saved in parts. The number of repetitions is limited, because a reply that takes
        longer than the time between two aborts would otherwise never end.
        """
        request = self._request
        if not self._sampled.ids or request.seed is None or self._renewals >= self._retry.tries:
            return False
        if request.partial is not None or request.draft.ids:
            return False
        return endpoint.seeds is Seeds.REQUEST

    async def _build_request(self, endpoint: Endpoint) -> Request:
        """Returns the request of one try. Its prompt includes the tokens that are sampled
        already."""
        request, ids = self._request, self._sampled.ids
        check_request(request, endpoint)
        prompt: array[int] = request.prompt + ids if ids else request.prompt
        max_tokens = request.sampling.max_tokens - len(ids)
        longest = endpoint.described.max_model_len
        if longest is not None and endpoint.dialect.has_tokens:
            if len(prompt) >= longest:
                raise ContextOverflow(f"{len(prompt)} tokens; the model takes {longest}")
            max_tokens = min(max_tokens, longest - len(prompt))
        return structs.replace(
            request,
            model=endpoint.model_name,
            prompt=prompt,
            max_tokens=max_tokens,
            seed=self._seed(endpoint),
            stream=request.partial is not None and endpoint.dialect.has_tokens,
            adapter=endpoint.adapter,
            prompt_json=await endpoint.prompt_cache.encode(prompt, request.home),
        )

    def _seed(self, endpoint: Endpoint) -> int | None:
        """Returns the request's seed, or a seed derived from it if the completion continues from
        earlier tokens.

        Most engines restart a seed's random numbers with each request. With the same seed, such an
        engine would sample the rest of the completion with the random numbers of its beginning.
        """
        seed, at = self._request.seed, len(self._sampled.ids)
        if seed is None or not at or endpoint.seeds is Seeds.POSITION:
            return seed
        digest = hashlib.blake2b(f"{seed}\0{at}".encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big") >> 1

    async def _receive(self, endpoint: Endpoint, attempt: Request) -> None:
        await endpoint.answer(attempt, self._sampled, before=lambda: self._note_version(endpoint))
        if self._watch is not None:
            self._watch.found(self._sampled)

    async def _follow(self, endpoint: Endpoint, attempt: Request) -> None:
        partial = self._request.partial
        assert partial is not None, "only what is kept in parts is streamed"
        stream = endpoint.stream(
            attempt, self._sampled, before=lambda: self._note_version(endpoint)
        )
        self._fresh, self._fresh_at = 0, self._clock.elapsed()
        try:
            async for _ in stream:
                if self._watch is not None and self._watch.found(self._sampled):
                    return
                if self._is_time_to_save(partial):
                    await self._save(endpoint, hold=1)
                if self._is_late(endpoint):
                    return
        finally:
            await stream.aclose()  # type: ignore[attr-defined]

    def _note_version(self, endpoint: Endpoint) -> None:
        """Notes that the weights were updated during a try. In a stream, a new version span begins
        here. If the answer comes in one piece, the version of each of its tokens is unknown."""
        if endpoint.weights != self._version and not self._is_named:
            self._version = endpoint.weights
            whole = self._request.partial is None
            self._sampled.assume(None if whole else self._version)

    def _is_late(self, endpoint: Endpoint) -> bool:
        """Returns whether to end the completion now, with the tokens it has, because its deadline
        or its time budget has passed. Raises `EngineUnavailable` if the stream has sent no token
        for too long."""
        sampled, now = self._sampled, self._clock.elapsed()
        if sampled.finish_reason is not None:
            return False
        if sampled.fresh > self._fresh:
            self._fresh, self._fresh_at = sampled.fresh, now
        silence, late = now - self._fresh_at, self._seconds_left() <= 0 or self._is_over_budget()
        if silence > self._retry.stall_timeout or (late and silence > SILENCE_SECONDS):
            raise EngineUnavailable(f"{endpoint.name} sent no token for {silence:.0f} s")
        if late and sampled.fresh:
            sampled.finish_reason = DEADLINE
        return late and sampled.fresh > 0

    def _is_time_to_save(self, partial: Partial) -> bool:
        """Returns whether to save the new tokens now. A finished completion is recorded as a whole,
        so it is not saved here."""
        if self._sampled.finish_reason is not None or self._is_constrained:
            return False
        unsaved = len(self._sampled.ids) - self._sampled.saved
        if unsaved > partial.every:
            return True
        seconds = SAVE_SECONDS if partial.seconds is None else partial.seconds
        return unsaved > 1 and self._clock.elapsed() - self._last_save > seconds

    async def _save(self, endpoint: Endpoint, *, hold: int) -> None:
        """Makes the new tokens durable, except the last `hold` tokens, if their weights are known
        to be right."""
        partial = self._request.partial
        if partial is None:
            return
        self._last_save = self._clock.elapsed()
        if not await self._counts_now(endpoint):
            return
        if (draft := self._sampled.take_unsaved(hold=hold)) is not None:
            await partial.save(draft)

    def _check_end(self) -> None:
        reason = self._sampled.finish_reason
        if reason == ABORTED:
            raise EngineUnavailable("the engine aborted the generation (finish_reason 'abort')")
        if reason is None:
            raise EngineUnavailable("the engine's answer ends without a finish_reason")
        if self._request.experts_from is not None and self._sampled.lacks_experts:
            raise Unsupported(
                "routed_experts",
                "the engine gives no routed experts: start vLLM or SGLang with "
                "--enable-return-routed-experts and a model that has experts, or leave them out",
            )

    # --- after a try that failed

    async def _recover(self, endpoint: Endpoint, error: PolicyError, *, outages: int) -> None:
        """Waits until another try makes sense. Raises an error if the call has used up its tries or
        its time."""
        # A call that makes progress has not failed, however often it is interrupted.
        self._failures = 1 if self._sampled.fresh else self._failures + 1
        if await self._is_outage(endpoint, error, outages=outages):
            # The endpoint failed, not this call, unless this call causes the failure.
            self._outages += 1
            self._failures = 0
            if self._outages > self._retry.tries:
                raise error
            return
        left = self._seconds_left()
        if self._failures >= self._retry.tries or left <= 0:
            raise error
        await self._pause(endpoint, error, left)

    def _seconds_left(self) -> float:
        """Returns the seconds until the deadline."""
        return self._retry.deadline - self._seconds_taken()

    def _seconds_taken(self) -> float:
        """Returns the seconds since the call began, without outages."""
        down = self._replicas.seconds_down - self._down
        return max(0.0, self._clock.elapsed() - self._started - down)

    def _is_over_budget(self) -> bool:
        return self._request.seconds is not None and self._seconds_taken() >= self._request.seconds

    async def _is_outage(self, endpoint: Endpoint, error: PolicyError, *, outages: int) -> bool:
        """Returns whether the endpoint, and not this call, caused the failure. This is so if the
        endpoint was down since the try began, or if its weights are in doubt. In an outage, waits
        until a replica is up."""
        breaker = endpoint.breaker
        if isinstance(error, WeightsDoubted):
            return True  # The gate holds all calls until the weights are sent again.
        if isinstance(error, EngineUnavailable) and not error.reached:
            breaker.record_failure()
            if self._failures >= self._retry.tries:
                # Probe before the call fails, because a single call never fails often enough to
                # trip the breaker.
                breaker.trip()
        elif isinstance(error, BadAnswer):
            self._replicas.distrust(endpoint)
        if endpoint.look_at_weights is not None and _lost_connection(error):
            breaker.trip()  # The engine may have been restarted with other weights.
        await self._replicas.available()
        return breaker.outages != outages or not breaker.is_passing

    async def _pause(self, endpoint: Endpoint, error: PolicyError, left: float) -> None:
        delay = self._retry.delay(self._failures, retry_after=self._seconds_to_wait(error))
        if delay > left:
            raise EngineUnavailable(
                f"{redact(str(error))} — it asks to wait {delay:.0f} s, more than the {left:.0f} s "
                "that are left"
            ) from error
        endpoint.breaker.spend_retry()
        await self._clock.sleep(delay)

    def _seconds_to_wait(self, error: PolicyError) -> float | None:
        """Returns how long the engine asks us to wait, or None if it does not say. If the engine is
        busy (429) and names no time, returns a long pause, because limits on requests last for
        seconds or a minute."""
        if not isinstance(error, EngineUnavailable):
            return None
        if error.is_busy and error.retry_after is None:
            return min(self._retry.cap, _BUSY * self._retry.base * 2.0**self._failures)
        return error.retry_after


def _lost_connection(error: PolicyError) -> bool:
    return isinstance(error, EngineUnavailable) and isinstance(
        error.__cause__, (aiohttp.ClientError, OSError)
    )
