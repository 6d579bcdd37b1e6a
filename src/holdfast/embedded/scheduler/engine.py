"""The engine is one thread that owns the model and decodes many generations together.

Requests join and leave between any two steps. The same prompt, seed and sampling give the same
tokens and bit-identical logprobs. This does not depend on the other requests or on the slot. It
also holds if a request was interrupted at any token and sent again with the tokens it had.

The engine knows tokens, not messages or HTTP. Other threads put their requests into an inbox, which
the engine's own thread handles between two steps. Sinks are called in that thread.
"""

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from enum import StrEnum
from typing import TypeVar

from torch import Tensor

from holdfast.embedded.model import verify_batched, weights
from holdfast.embedded.model.batched import Row
from holdfast.embedded.model.load import LoadedModel
from holdfast.embedded.scheduler import sampler
from holdfast.embedded.scheduler.generation import Finish, Generation, Statistics, TokenDelta
from holdfast.embedded.scheduler.slots import CacheSlots, PrefixSharing
from holdfast.records.errors import HoldfastError, UsageError

MAX_BATCH = 32
MAX_WAITING = 1024
_JOIN_SECONDS = 60.0
_T = TypeVar("_T")


class QueueFull(HoldfastError):
    """Too many requests are waiting already."""


class EngineStopped(HoldfastError):
    """The engine was closed, or its thread died of an error, which is the cause."""


class PauseMode(StrEnum):
    """What a pause does to the requests in flight."""

    KEEP = "keep"
    """The requests are frozen until `resume`."""
    ABORT = "abort"
    """The requests end now, with the tokens that they have."""
    WAIT = "wait"
    """The requests are finished first, and no other request starts."""


class DecodeEngine:
    """Serves one model. Use it as a context manager, or call `start` and `close`."""

    def __init__(
        self,
        model: LoadedModel,
        *,
        max_batch: int = MAX_BATCH,
        max_waiting: int = MAX_WAITING,
        version: str = "default",
    ):
        self.model = model
        self.version = version
        self.statistics = Statistics()
        self.failure: BaseException | None = None
        self.on_failure: Callable[[], None] = lambda: None
        """Called in the engine's thread when the thread dies."""
        self._max_waiting = max_waiting
        self._passes = verify_batched.passes(model, slots=max_batch)
        self._slots = CacheSlots(max_batch)
        self._sharing = PrefixSharing(self._passes.cache)
        self._running: list[Generation] = []
        self._waiting: deque[Generation] = deque()
        self._paused: PauseMode | None = None
        self._drained: list[Future[None]] = []
        self._inbox: deque[Callable[[], None]] = deque()
        self._wake = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._work, name="holdfast-engine", daemon=True)

    # --- for any thread

    def start(self) -> None:
        """Verifies on this machine that sequences do not affect each other, then begins to work. If
        sequences affect each other, the model runs one sequence at a time, with the reason in
        `model.why_solo`. Raises `UsageError` for a model that is unreliable even then."""
        verified = self._do(self._verify)
        self._thread.start()
        try:
            verified.result()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Ends the generations in flight with `abort`, then ends the thread."""
        self._put(self._shut_down)
        if self._thread.is_alive():
            self._thread.join(_JOIN_SECONDS)

    def __enter__(self) -> "DecodeEngine":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def submit(self, *generations: Generation) -> None:
        """Submits all generations or none. Raises `QueueFull` or `EngineStopped`."""
        for generation in generations:
            self._check(generation)
        with self._wake:
            self._check_open()
            if len(self._waiting) + len(generations) > self._max_waiting:
                raise QueueFull(f"{len(self._waiting)} requests are waiting already")
            self._waiting.extend(generations)
            self._wake.notify()

    def cancel(self, *generations: Generation) -> None:
        """Cancels generations. Their slots are free before the next step, and their sinks are not
        called again."""
        for generation in generations:
            generation.cancelled = True
        self._put(self._drop_cancelled)

    def update_weights(
        self, state: Mapping[str, Tensor], version: str, *, reset_cache: bool = False
    ) -> None:
        """Replaces all tensors at once, between two steps. Requests in flight continue with the new
        weights. Their cache is kept, or computed again with `reset_cache`. Raises `UsageError` for
        weights that do not fit, and then changes nothing."""
        steps = weights.plan(self.model.network, state)
        self._do(lambda: self._switch(steps, version, reset_cache=reset_cache)).result()

    def pause(self, mode: PauseMode) -> "Future[None]":
        """Pauses the engine. The future is done when computing has stopped. New requests wait."""
        done: Future[None] = Future()
        self._put(lambda: self._hold(mode, done), must=True)
        return done

    def resume(self) -> "Future[None]":
        return self._do(self._continue)

    @property
    def paused(self) -> bool:
        return self._paused is not None

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def cache_use(self) -> float:
        """The share of the cache's positions that the requests in flight fill, from 0 to 1."""
        held = sum(generation.computed for generation in list(self._running))
        return held / (self._slots.count * self.model.max_length)

    def _check(self, generation: Generation) -> None:
        total = generation.prompt_length + generation.sampling.max_tokens
        if not 0 < generation.prompt_length < total <= self.model.max_length:
            raise UsageError(
                f"{generation.prompt_length} prompt tokens and {generation.sampling.max_tokens} to "
                f"sample do not fit the maximum context length of {self.model.max_length}"
            )

    def _do(self, work: Callable[[], _T]) -> "Future[_T]":
        """Runs work in the engine's thread between two steps."""
        done: Future[_T] = Future()

        def run() -> None:
            if not done.set_running_or_notify_cancel():
                return
            try:
                done.set_result(work())
            except BaseException as error:  # raised to the waiting caller
                done.set_exception(error)

        self._put(run, must=True)
        return done

    def _put(self, work: Callable[[], None], *, must: bool = False) -> None:
        with self._wake:
            if must:
                self._check_open()
            self._inbox.append(work)
            self._wake.notify()

    def _check_open(self) -> None:
        if self._closed:
            raise EngineStopped("the engine has stopped") from self.failure

    # --- for the engine's thread

    def _work(self) -> None:
        try:
            while self._next():
                if self._steppable:
                    self._step()
                if self._paused is not None and not self._steppable:
                    self._release_drained()
        except BaseException as error:  # stored, and raised to every caller
            self.failure = error
            self._shut_down(Finish.ERROR)
            self.on_failure()
        finally:
            for work in self._inbox:  # Nobody can add work any more.
                work()

    def _verify(self) -> None:
        self.model, self._passes = verify_batched.verify(self.model, self._passes)
        self._sharing = PrefixSharing(self._passes.cache)

    def _next(self) -> bool:
        """Waits for work and handles the inbox. Returns False if the engine is closed."""
        with self._wake:
            while not (self._inbox or self._admissible or self._steppable or self._closed):
                self._wake.wait()
            requested = list(self._inbox)
            self._inbox.clear()
        for work in requested:
            work()
        self._admit()
        return not self._closed

    @property
    def _admissible(self) -> bool:
        return bool(self._waiting) and self._paused is None and self._slots.any_free

    @property
    def _steppable(self) -> bool:
        return bool(self._running) and self._paused in (None, PauseMode.WAIT)

    def _admit(self) -> None:
        while self._admissible:
            with self._wake:
                generation = self._waiting.popleft()
            generation.slot, generation.computed = self._slots.take(generation.ids)
            self._sharing.join(generation, self._running)
            self.statistics.prompt_tokens += generation.prompt_length
            self._running.append(generation)

    def _step(self) -> None:
        parts = compose(self._sharing.free(self._running), room=self._passes.room)
        rows: list[Row] = []
        ready: list[Generation] = []
        ends: list[int] = []
        for generation, count in parts:
            start = generation.computed
            tokens = generation.ids[start : start + count]
            rows.extend(Row(token, generation.slot, start + i) for i, token in enumerate(tokens))
            generation.computed += count
            if generation.pending == 0:
                ready.append(generation)
                ends.append(len(rows) - 1)
        logits = self._passes.run(rows, ends)
        self.statistics.count_pass(len(rows))
        if ready:
            self._sample(logits, ready)

    def _sample(self, logits: Tensor, ready: Sequence[Generation]) -> None:
        requests = [(generation.sampling, len(generation.ids)) for generation in ready]
        texts = [(generation.ids, generation.prompt_length) for generation in ready]
        drawn = sampler.draw(logits, requests, texts)
        news: list[tuple[Generation, TokenDelta]] = []
        for generation, token in zip(ready, drawn, strict=True):
            if token is None:
                self._passes.cache.clean(generation.slot)
                generation.mixed = True
                news.append((generation, generation.end(Finish.ERROR)))
            else:
                self.statistics.generation_tokens += 1
                news.append(
                    (generation, generation.add(token, version=self.version, eos=self.model.eos))
                )
        self._publish(news)

    def _publish(self, news: Sequence[tuple[Generation, TokenDelta]]) -> None:
        """Sends new tokens. Finished requests leave first, so that a client that sees an end finds
        its slot free."""
        self._sweep()
        for generation, delta in news:
            generation.send(delta)

    def _drop_cancelled(self) -> None:
        with self._wake:
            self._waiting = deque(
                generation for generation in self._waiting if not generation.cancelled
            )
        self._sweep()

    def _sweep(self) -> None:
        """Removes finished and cancelled generations."""
        for generation in [
            generation
            for generation in self._running
            if generation.cancelled or generation.finish_reason
        ]:
            self._running.remove(generation)
            self._sharing.leave(generation)
            self._slots.release(
                generation.slot, [] if generation.mixed else generation.ids[: generation.computed]
            )
            self.statistics.count_finish(generation.finish_reason or Finish.ABORT)

    def _switch(self, steps: weights.Plan, version: str, *, reset_cache: bool) -> None:
        weights.apply(steps)
        self.version = version
        self.statistics.weight_updates += 1
        self._slots.forget()
        self._sharing.dissolve()
        for generation in self._running:
            if reset_cache:
                generation.computed = 0
            generation.mixed = not reset_cache

    def _hold(self, mode: PauseMode, done: "Future[None]") -> None:
        self._paused = mode
        self._drained.append(done)
        if mode is PauseMode.ABORT:
            self._abort(Finish.ABORT)

    def _abort(self, reason: Finish) -> None:
        with self._wake:
            waiting = list(self._waiting)
            self._waiting.clear()
        ended = [
            generation for generation in (*self._running, *waiting) if not generation.cancelled
        ]
        self._publish([(generation, generation.end(reason)) for generation in ended])

    def _release_drained(self) -> None:
        drained, self._drained = self._drained, []
        for done in drained:
            if done.set_running_or_notify_cancel():
                done.set_result(None)

    def _continue(self) -> None:
        self._paused = None
        self._release_drained()

    def _shut_down(self, reason: Finish = Finish.ABORT) -> None:
        with self._wake:
            self._closed = True
        self._abort(reason)
        self._continue()


def compose(running: Sequence[Generation], *, room: int) -> list[tuple[Generation, int]]:
    """Returns the generations of the next pass, with the number of tokens to compute for each.

    Generations with a single pending token go first, so that they never wait for another
    generation's prompt. The remaining room goes to prompts, in order of arrival.
    """
    parts: list[tuple[Generation, int]] = []
    for generation in sorted(running, key=lambda generation: generation.pending > 1):
        count = min(generation.pending, room)
        if count:
            parts.append((generation, count))
            room -= count
    return parts
