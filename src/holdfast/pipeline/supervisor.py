"""Starts the parts of a pipeline, restarts those that crash, and ends them in order.

All state that matters is in the journal and in checkpoints, so that a dead part is simply started
again. A pipeline always ends in the same order. First, no more rollouts begin. Then the rollouts in
flight become durable, and the current step is trained, saved and committed. Then each part closes
the engines and journals that it opened.
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
"""The seconds that a part has to end by itself before it is killed."""


class PipelineEnding(Struct, frozen=True):
    """How a pipeline ended."""

    cause: str
    """Why the pipeline ended early: the last line of the part that caused it; "" if all work was
    done."""
    code: int
    """The exit status of the part that caused the early end, or 1 if an engine caused it. 0 if all
    work was done or a stop was requested."""
    restarts: dict[str, int]
    """The number of restarts of each part."""


class _Keeper:
    """Keeps one part running: starts it again after a crash."""

    def __init__(self, part: PipelinePart, supervisor: "Supervisor"):
        self.part = part
        self.restarts = Restarts(supervisor.policy)
        self.child: ChildProcess | None = None
        self.cause = ""
        self.code = 0
        self._supervisor = supervisor
        self._is_ending = False

    async def keep(self) -> bool:
        """Keeps the part running. Returns True when the part has done its work, and False if it is
        not started again."""
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
        """Ends the part: sends SIGTERM to its process, and kills the process after `end_seconds`. A
        part that waits for its next start is not started any more."""
        self._is_ending = True
        if self.child is not None and not task.done():
            await self.child.end(within=self._supervisor.end_seconds)
        task.cancel()
        await asyncio.wait({task})


class Supervisor:
    """Runs parts until their work is done. Use it once.

    `parts` are in the order in which they end: a part that begins work comes before the part that
    completes it. Each part ends by itself, with 0, when the stream is sealed and its own share is
    done.
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
        """`final` has the exit codes after which another start would end the same way. `engine` is
        the engine that the parts need; its caller stops it. `on_line` is called with each line of
        each part: (part, stream, text)."""
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
        """The process ids of the parts that were started."""
        return {k.part.name: k.child.pid for k in self._keepers if k.child is not None}

    async def run(self) -> PipelineEnding:
        """Runs the parts until every part has done its work, a part is not started again, the
        engine is lost, or a stop is requested. When this returns, no process of the parts is
        left."""
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
        """Waits until the pipeline ends. Returns the cause of an early end, or "", and the exit
        code."""
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
