"""BlackBoxRolloutProcessor: an agent that is a program, one process for each attempt.

It is pointed at the gateway by environment variables and told nothing else. When it, the gateway or
the engine dies, it is started again, and its calls are answered from the record until it comes to
where it was.
"""

import inspect
import tempfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from holdfast.gateway.agent_process import AgentProcess, environment
from holdfast.gateway.errors import AgentFailed, AgentKilled
from holdfast.gateway.server import Binding
from holdfast.gateway.through_gateway import SILENCE, GatewayRolloutProcessor, attempt_of
from holdfast.gateway.trajectory import AgentTrajectory
from holdfast.records.errors import UsageError
from holdfast.records.task import Task
from holdfast.rollout.context import Rollout
from holdfast.rollout.processor import Returned, code_of

Agent = Callable[[Binding, Task], Awaitable[Returned]]
"""An agent in this process: it is given its address and key, and may return (turns, reward)."""


class BlackBoxRolloutProcessor(GatewayRolloutProcessor):
    """Runs `command` for each attempt, or awaits a callable.

    A process that ends with 0 has done its task; its reward is what it posted to `/complete`, or
    what the run's scorer says. Any other end is a failure with its last words, never a reward.
    """

    def __init__(
        self,
        command: Sequence[str] | Agent,
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | Path | None = None,
        logs: str | Path | None = None,
        silence: float = SILENCE,
    ):
        """`logs`: where the output of each attempt is kept; by default only its end, in errors."""
        super().__init__(silence=silence)
        if isinstance(command, str):
            raise UsageError(f"a command is a list of words, not {command!r}")
        if not callable(command) and not (command and all(isinstance(w, str) for w in command)):
            raise UsageError(f"a command is a list of words, not {command!r:.200}")
        self._command = command
        self._env = dict(env or {})
        self._cwd = Path(cwd) if cwd is not None else Path.cwd()
        self._logs = Path(logs) if logs is not None else None

    @property
    def identity(self) -> str:
        if callable(self._command):
            return code_of(self._command)
        return f"{list(self._command)!r} {sorted(self._env)!r}"

    async def run_agent(
        self, t: Rollout, binding: Binding, trajectory: AgentTrajectory
    ) -> Returned:
        if callable(self._command):
            found: Any = self._command(binding, t.task)
            result: Returned = await found if inspect.isawaitable(found) else found
            return result
        with tempfile.TemporaryDirectory(prefix="holdfast-agent-") as scratch:
            await self._run_process(self._command, t, binding, self._folder(t) or Path(scratch))
        return None

    async def _run_process(
        self, command: Sequence[str], t: Rollout, binding: Binding, folder: Path
    ) -> None:
        model = t.voice.policy.model
        env = environment(binding, t.task, model=model, folder=folder, more=self._env)
        process = AgentProcess(command, folder=folder, env=env, cwd=self._cwd)
        await process.start()
        try:
            code = await process.wait()
        finally:
            await process.end()
        if code != 0:
            if code < 0:
                raise AgentKilled(f"signal {-code} ended the agent: {process.last_words}")
            raise AgentFailed(f"the agent ended with exit code {code}: {process.last_words}")

    def _folder(self, t: Rollout) -> Path | None:
        if self._logs is None:
            return None
        name = f"{t.key.task}-{t.key.sample}".replace("/", "_")
        folder = self._logs / t.key.run / name / str(attempt_of(t))
        folder.mkdir(parents=True, exist_ok=True)
        return folder
