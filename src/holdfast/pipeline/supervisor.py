"""Supervisor: starts the parts of a pipeline, restarts those that crash, and ends them in order.

Everything that matters is in the journal and in checkpoints, so a part that died is simply started
again. The order of every end is: no more rollouts are begun, those in flight become durable, the
step in hand is trained, saved and committed; then engines and journals are closed by who opened
them.
"""

import asyncio
from collections.abc import Callable, Sequence

from msgspec import Struct

from holdfast.engine.stop import Stop
from holdfast.pipeline.child import (
    ChildProcess,
    PipelinePart,
    Restarts,
    how_ended,
    is_crash,
    last_cause,
)
from holdfast.pipeline.engine import SupervisedEngine
from holdfast.pipeline.settings import RestartPolicy

END_SECONDS = 120.0
"""For one part to end with care, before it is killed."""


class PipelineEnding(Struct, frozen=True):
    """How a pipeline ended."""

    cause: str
    """Why it ended early: the last line of the part that caused it; "" if all was done."""
    code: int
    """The exit status of that part, 1 for an engine; 0 when all was done or a stop was requested.
    """
    restarts: dict[str, int]
    """By part."""


class _Keeper:
    """One part, through all its lives."""

    def __init__(self, part: PipelinePart, supervisor: "Supervisor"):
        self.part = part
        self.restarts = Restarts(supervisor.policy)
        self.child: ChildProcess | None = None
        self.cause = ""
        self.code = 0
        self._supervisor = supervisor
        self._is_ending = False

    async def keep(self) -> bool:
        """Until the part has done its work: True. False when it has not, and will not."""
        while not self._is_ending:
            self.child = ChildProcess(self.part, self._on_line)
            self.child.start()
            self.code = await self.child.wait()
            if self.code == 0:
                return True
            if self._is_ending:
                return False
            self.cause = self._why(self.child)
            if not is_crash(self.code, final=self._supervisor.final):
                return False
            wait = self.restarts.after_crash()
            if wait is None:
                self.cause = last_cause(self.cause, self.restarts.count)
                return False
            self._supervisor.report(f"{self.cause}; starting it again in {wait:g} s")
            await asyncio.sleep(wait)
        return False

    def _why(self, child: ChildProcess) -> str:
        last_line = child.last_line if self.code >= 0 else ""
        return f"{how_ended(self.part.name, self.code)}{f': {last_line}' if last_line else ''}"

    def _on_line(self, stream: str, text: str) -> None:
        self._supervisor.on_line(self.part.name, stream, text)

    async def end(self, task: "asyncio.Task[bool]") -> None:
        """With care; a part that waits to be started again is not."""
        self._is_ending = True
        if self.child is not None and not task.done():
            await self.child.end(within=self._supervisor.end_seconds)
        task.cancel()
        await asyncio.wait({task})


class Supervisor:
    """Runs parts until their work is done. Use it once.

    `parts` are in the order in which they end: who begins work before who completes it. Each ends
    by itself, with 0, when the stream is sealed and its own share is done.
    """

    def __init__(
        self,
        parts: Sequence[PipelinePart],
        *,
        policy: RestartPolicy | None = None,
        final: Sequence[int] = (2,),
        engine: SupervisedEngine | None = None,
        stop: Stop | None = None,
        end_seconds: float = END_SECONDS,
        report: Callable[[str], None] = lambda line: None,
        on_line: Callable[[str, str, str], None] = lambda part, stream, text: None,
    ):
        """`final`: exit codes after which another start would end the same way. `engine`: what
        the parts need; who serves it stops it. `on_line` gets each line of each part: (part,
        stream, text)."""
        self.policy = policy or RestartPolicy()
        self.final = final
        self.end_seconds = end_seconds
        self.report = report
        self.on_line = on_line
        self._engine = engine
        self._stop = stop or Stop()
        self._keepers = [_Keeper(part, self) for part in parts]

    @property
    def restarts(self) -> dict[str, int]:
        restarts = {keeper.part.name: keeper.restarts.count for keeper in self._keepers}
        return (
            restarts if self._engine is None else restarts | {"engine": self._engine.restarts.count}
        )

    @property
    def pids(self) -> dict[str, int]:
        """Of the parts that were started."""
        return {k.part.name: k.child.pid for k in self._keepers if k.child is not None}

    async def run(self) -> PipelineEnding:
        """Returns when every part has done its work, or one of them never will, or the engine is
        lost, or a stop is requested; no process of the parts is left."""
        tasks = {
            keeper: asyncio.create_task(keeper.keep(), name=keeper.part.name)
            for keeper in self._keepers
        }
        try:
            cause, code = await self._watch(tasks)
        finally:
            for keeper, task in tasks.items():
                await keeper.end(task)
        return PipelineEnding(cause, code, self.restarts)

    async def _watch(self, tasks: "dict[_Keeper, asyncio.Task[bool]]") -> tuple[str, int]:
        """Why it ends early, and with which code, if it does."""
        engine = [] if self._engine is None else [self._engine.keeper]
        while True:
            for keeper, task in tasks.items():
                if task.done() and not task.result():
                    return keeper.cause, keeper.code
            open_tasks = [task for task in tasks.values() if not task.done()]
            if not open_tasks:
                return "", 0
            for lost in engine:
                if lost.done():
                    return lost.result(), 1
            await self._stop.wait_or(*open_tasks, *engine)
            if self._stop.requested:
                return "", 0
