"""Decides when the fake engine draws tokens, how fast, and with which weights.

The engine draws no tokens while it is paused, except in the mode that lets running requests end. A
pause is like vLLM's. In every mode, new requests wait for the resume. Depending on the mode,
running requests are aborted with the tokens that they have, are frozen between two tokens, or run
to their end.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Literal, get_args

from holdfast.testing.fake_engine.generation import FakeGeneration
from holdfast.testing.fake_engine.ledger import Ledger

PauseMode = Literal["abort", "wait", "keep"]
PAUSE_MODES: tuple[str, ...] = get_args(PauseMode)


class FakeWeights:
    """The weights of an engine without a trainer. The name of the version stands for the
    weights."""

    content: str | None = None
    """The weights with which the engine samples. None means the weights that the version's name
    stands for."""
    adapters: Mapping[str, Path] = {}

    def content_for(self, model: str, prompt: list[int], *, version: str) -> str | None:
        """Returns the weights for the whole of a request. None means the weights that are loaded at
        each token."""
        return None

    def reset_cache(self) -> None:
        """Removes results from the cache that were computed with other weights."""


class FakeRun:
    """A generation that waits for its turn to draw. Each token is counted when it is drawn."""

    def __init__(self, request_id: str, generation: FakeGeneration, schedule: "Schedule"):
        self.id = request_id
        self.generation = generation
        self.aborted = False
        self.content: str | None = None
        """The weights with which the generation is sampled. None means the weights that are loaded
        at each token."""
        self._schedule = schedule

    async def advance(self, count: int) -> None:
        """Draws up to `count` tokens. The generation ends with "abort" if the run was aborted in
        the meantime."""
        goal = len(self.generation.ids) + count
        while self.generation.finish_reason is None and len(self.generation.ids) < goal:
            await self._schedule.turn(self)
            if self.aborted:
                self.generation.abort()
            else:
                self._draw(goal - len(self.generation.ids))

    async def hold(self, seconds: float) -> None:
        await self._schedule.hold(self, seconds)

    def _draw(self, count: int) -> None:
        before = len(self.generation.ids)
        slow = bool(self._schedule.token_delay)
        schedule = self._schedule
        content = self.content or schedule.weights.content
        self.generation.advance(1 if slow else count, schedule.version, content=content)
        self._schedule.ledger.stats.tokens += len(self.generation.ids) - before
        if self.generation.finish_reason is not None:
            self._schedule.ledger.stats.completions += 1


class Schedule:
    def __init__(self, ledger: Ledger, weights: FakeWeights, *, version: str, token_delay: float):
        self.ledger = ledger
        self.weights = weights
        self.version = version
        self.token_delay = token_delay
        self.paused = False
        self.waiting = 0
        self.held = 0
        self._releases = 0
        self._frozen = False
        self._runs: set[FakeRun] = set()
        self._changed = asyncio.Condition()

    @property
    def running(self) -> int:
        return len(self._runs)

    @asynccontextmanager
    async def admit(self, request_id: str, generation: FakeGeneration) -> AsyncIterator[FakeRun]:
        """Waits while the engine is paused. Then yields the run, which counts as running until the
        end of the block."""
        if self.paused:
            self.waiting += 1
            try:
                await self._until(lambda: not self.paused)
            finally:
                self.waiting -= 1
        run = FakeRun(request_id, generation, self)
        self._runs.add(run)
        try:
            yield run
        finally:
            self._runs.discard(run)
            if self.paused:
                # A pause may be waiting for the last running request.
                await self._notify()

    async def turn(self, run: FakeRun) -> None:
        """Waits until the next token of the run may be drawn, or until the run was aborted."""
        if self.token_delay:
            await asyncio.sleep(self.token_delay)
        if self._frozen:
            await self._until(lambda: not self._frozen or run.aborted)

    async def hold(self, run: FakeRun, seconds: float) -> None:
        """Waits until the run is released or aborted, for at most `seconds` (0 means no limit)."""
        before = self._releases
        self.held += 1
        with contextlib.suppress(TimeoutError):
            try:
                async with asyncio.timeout(seconds or None):
                    await self._until(lambda: self._releases > before or run.aborted)
            finally:
                self.held -= 1

    # --- from outside

    async def release(self) -> None:
        """Releases all runs that are held at present."""
        self._releases += 1
        await self._notify()

    async def pause(self, mode: PauseMode) -> None:
        self.paused = True
        self._frozen = mode == "keep"
        if mode == "abort":
            await self.abort()
        elif mode == "wait":
            await self._notify()
            await self._until(lambda: not self._runs)

    async def resume(self) -> None:
        self.paused = self._frozen = False
        await self._notify()

    async def abort(self, request_ids: list[str] | None = None) -> int:
        """Aborts all runs. With `request_ids`, aborts only runs whose id is part of one of these
        ids, because wires add text to ids. Returns the number of aborted runs."""
        hit = [
            run
            for run in self._runs
            if request_ids is None or any(run.id in name for name in request_ids)
        ]
        for run in hit:
            run.aborted = True
        await self._notify()
        return len(hit)

    async def _until(self, true: Callable[[], bool]) -> None:
        async with self._changed:
            await self._changed.wait_for(true)

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()
