"""The engine: one thread that owns the model and decodes many generations together.

Requests join and leave between any two steps. The same prompt, seed and sampling give the same
tokens and bit-identical logprobs whatever else is running, wherever the request was interrupted and
sent again with what it already had, and in whichever slot it lands.

It knows tokens, not messages or HTTP. Everything that others ask of it is put into an inbox and
done by its own thread between two steps; `sink`s are called in that thread.
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
from holdfast.embedded.scheduler.prefix_sharing import Sharing
from holdfast.embedded.scheduler.slots import CacheSlots
from holdfast.records.errors import HoldfastError, UsageError

MAX_BATCH = 32
MAX_WAITING = 1024
_JOIN_SECONDS = 60.0
_T = TypeVar("_T")


class QueueFull(HoldfastError):
    """So many requests wait already that another would only wait longer."""


class EngineStopped(HoldfastError):
    """The engine was closed, or its thread died of the error that is the cause."""


class PauseMode(StrEnum):
    """What becomes of the requests in flight."""

    KEEP = "keep"
    """They stand still and go on with `resume`."""
    ABORT = "abort"
    """They end now, with the tokens that they have."""
    WAIT = "wait"
    """They are finished first; nothing new is begun."""


class DecodeEngine:
    """Serves one model. Use as a context manager, or `start` and `close` it."""

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
        """Called in the engine's thread when it dies."""
        self._max_waiting = max_waiting
        self._passes = verify_batched.passes(model, slots=max_batch)
        self._slots = CacheSlots(max_batch)
        self._sharing = Sharing(self._passes.cache)
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
        """Proves on this machine that sequences do not see each other, then begins to work. A model
        whose rows do is run one sequence at a time; `model.why_solo` says so from then on. Raises
        `UsageError` for one that gives nothing to rely on even so."""
        proved = self._do(self._prove)
        self._thread.start()
        try:
            proved.result()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Ends what is in flight with `abort`, and the thread."""
        self._put(self._shut)
        if self._thread.is_alive():
            self._thread.join(_JOIN_SECONDS)

    def __enter__(self) -> "DecodeEngine":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def submit(self, *generations: Generation) -> None:
        """All of them, or none: raises `QueueFull` or `EngineStopped`."""
        for one in generations:
            self._check(one)
        with self._wake:
            self._refuse_closed()
            if len(self._waiting) + len(generations) > self._max_waiting:
                raise QueueFull(f"{len(self._waiting)} requests are waiting already")
            self._waiting.extend(generations)
            self._wake.notify()

    def cancel(self, *generations: Generation) -> None:
        """Nobody wants them any more. Their places are free before the next step; their sinks
        are not called again."""
        for one in generations:
            one.cancelled = True
        self._put(self._drop_cancelled)

    def update_weights(
        self, state: Mapping[str, Tensor], version: str, *, reset_cache: bool = False
    ) -> None:
        """Between two steps, all tensors at once; requests in flight go on with the new weights.

        What they have in the cache is kept, or with `reset_cache` computed again. Raises
        `UsageError` for weights that do not fit, and has then changed nothing."""
        steps = weights.plan(self.model.network, state)
        self._do(lambda: self._switch(steps, version, reset_cache=reset_cache)).result()

    def pause(self, mode: PauseMode) -> "Future[None]":
        """Done when nothing is computed any more. New requests wait."""
        done: Future[None] = Future()
        self._put(lambda: self._hold(mode, done), must=True)
        return done

    def resume(self) -> "Future[None]":
        return self._do(self._go_on)

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
        """How much of the cache's positions the requests in flight fill, 0 to 1."""
        held = sum(one.computed for one in list(self._running))
        return held / (self._slots.count * self.model.max_length)

    def _check(self, one: Generation) -> None:
        asked = one.prompt_length + one.sampling.max_tokens
        if not 0 < one.prompt_length < asked <= self.model.max_length:
            raise UsageError(
                f"{one.prompt_length} prompt tokens and {one.sampling.max_tokens} to sample do not "
                f"fit the maximum context length of {self.model.max_length}"
            )

    def _do(self, work: Callable[[], _T]) -> "Future[_T]":
        """Has the engine's thread do something between two steps."""
        done: Future[_T] = Future()

        def run() -> None:
            if not done.set_running_or_notify_cancel():
                return
            try:
                done.set_result(work())
            except BaseException as error:  # it belongs to whoever waits for it
                done.set_exception(error)

        self._put(run, must=True)
        return done

    def _put(self, work: Callable[[], None], *, must: bool = False) -> None:
        with self._wake:
            if must:
                self._refuse_closed()
            self._inbox.append(work)
            self._wake.notify()

    def _refuse_closed(self) -> None:
        if self._closed:
            raise EngineStopped("the engine has stopped") from self.failure

    # --- for the engine's thread

    def _work(self) -> None:
        try:
            while self._next():
                if self._steppable:
                    self._step()
                self._tell_drained()
        except BaseException as error:  # kept, and raised to every caller
            self.failure = error
            self._shut(Finish.ERROR)
            self.on_failure()
        finally:
            for work in self._inbox:  # Nothing is added any more that somebody waits for.
                work()

    def _prove(self) -> None:
        self.model, self._passes = verify_batched.proved(self.model, self._passes)
        self._sharing = Sharing(self._passes.cache)

    def _next(self) -> bool:
        """Waits for something to do, does what others asked; False when it is over."""
        with self._wake:
            while not (self._inbox or self._admissible or self._steppable or self._closed):
                self._wake.wait()
            asked = list(self._inbox)
            self._inbox.clear()
        for work in asked:
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
                one = self._waiting.popleft()
            one.slot, one.computed = self._slots.take(one.ids)
            self._sharing.join(one, self._running)
            self.statistics.prompt_tokens += one.prompt_length
            self._running.append(one)

    def _step(self) -> None:
        parts = compose(self._sharing.free(self._running), room=self._passes.room)
        rows: list[Row] = []
        ready: list[Generation] = []
        ends: list[int] = []
        for one, count in parts:
            verify_batched = one.computed
            tokens = one.ids[verify_batched : verify_batched + count]
            rows.extend(Row(token, one.slot, verify_batched + i) for i, token in enumerate(tokens))
            one.computed += count
            if one.pending == 0:
                ready.append(one)
                ends.append(len(rows) - 1)
        logits = self._passes.run(rows, ends)
        self.statistics.count_pass(len(rows))
        if ready:
            self._sample(logits, ready)

    def _sample(self, logits: Tensor, ready: Sequence[Generation]) -> None:
        asked = [(one.sampling, len(one.ids)) for one in ready]
        drawn = sampler.draw(logits, asked)
        news: list[tuple[Generation, TokenDelta]] = []
        for one, token in zip(ready, drawn, strict=True):
            if token is None:
                self._passes.cache.clean(one.slot)
                one.mixed = True
                news.append((one, one.end(Finish.ERROR)))
            else:
                self.statistics.generation_tokens += 1
                news.append((one, one.add(token, version=self.version, eos=self.model.eos)))
        self._publish(news)

    def _publish(self, news: Sequence[tuple[Generation, TokenDelta]]) -> None:
        """Whoever sees an end finds its place free already."""
        self._sweep()
        for one, delta in news:
            one.tell(delta)

    def _drop_cancelled(self) -> None:
        with self._wake:
            self._waiting = deque(one for one in self._waiting if not one.cancelled)
        self._sweep()

    def _sweep(self) -> None:
        """Takes out what is finished or no longer wanted."""
        for one in [one for one in self._running if one.cancelled or one.finish_reason]:
            self._running.remove(one)
            self._sharing.leave(one)
            self._slots.release(one.slot, [] if one.mixed else one.ids[: one.computed])
            self.statistics.count_finish(one.finish_reason or Finish.ABORT)

    def _switch(self, steps: weights.Plan, version: str, *, reset_cache: bool) -> None:
        weights.apply(steps)
        self.version = version
        self.statistics.weight_updates += 1
        self._slots.forget()
        self._sharing.dissolve()
        for one in self._running:
            if reset_cache:
                one.computed = 0
            one.mixed = not reset_cache

    def _hold(self, mode: PauseMode, done: "Future[None]") -> None:
        self._paused = mode
        self._drained.append(done)
        if mode is PauseMode.ABORT:
            self._abort(Finish.ABORT)

    def _abort(self, reason: Finish) -> None:
        with self._wake:
            waiting = list(self._waiting)
            self._waiting.clear()
        ended = [one for one in (*self._running, *waiting) if not one.cancelled]
        self._publish([(one, one.end(reason)) for one in ended])

    def _tell_drained(self) -> None:
        if self._paused is not None and not self._steppable:
            self._release_drained()

    def _release_drained(self) -> None:
        drained, self._drained = self._drained, []
        for done in drained:
            if done.set_running_or_notify_cancel():
                done.set_result(None)

    def _go_on(self) -> None:
        self._paused = None
        self._release_drained()

    def _shut(self, reason: Finish = Finish.ABORT) -> None:
        with self._wake:
            self._closed = True
        self._abort(reason)
        self._go_on()


def compose(running: Sequence[Generation], *, room: int) -> list[tuple[Generation, int]]:
    """Whose tokens the next pass computes, and how many of each.

    Whoever has one token to compute goes first: nobody waits for another's prompt. The rest of the
    room goes to prompts, in order of arrival."""
    parts: list[tuple[Generation, int]] = []
    for one in sorted(running, key=lambda one: one.pending > 1):
        count = min(one.pending, room)
        if count:
            parts.append((one, count))
            room -= count
    return parts
