"""BlackBoxRolloutProcessor: an agent that is a program, one process for each attempt.

It is pointed at the gateway by environment variables and told nothing else. When it, the gateway or
the engine dies, it is started again, and its calls are answered from the record until it comes to
where it was.
"""

import asyncio
import inspect
import tempfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from holdfast.gateway.agent_process import AgentProcess, environment
from holdfast.gateway.errors import AgentFailed, AgentSilent
from holdfast.gateway.server import Binding, Gateway
from holdfast.gateway.trajectory import AgentTrajectory
from holdfast.records.errors import Truncated, UsageError
from holdfast.records.task import Task
from holdfast.rollout.containment import end
from holdfast.rollout.context import Rollout
from holdfast.rollout.processor import Returned, RolloutProcessor, code_of

Agent = Callable[[Binding, Task], Awaitable[Returned]]
"""An agent in this process: it is given its address and key, and may return (turns, reward)."""
SILENCE = 1800.0
LOOK = 1.0


class BlackBoxRolloutProcessor(RolloutProcessor):
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
        """`silence`: seconds without a call, and without waiting for one, after which it is given
        up. `logs`: where the output of each attempt is kept; by default only its end, in errors."""
        if isinstance(command, str):
            raise UsageError(f"a command is a list of words, not {command!r}")
        self._command = command
        self._env = dict(env or {})
        self._cwd = Path(cwd) if cwd is not None else Path.cwd()
        self._logs = Path(logs) if logs is not None else None
        self._silence = silence
        self._gateway: Gateway | None = None

    @property
    def identity(self) -> str:
        if callable(self._command):
            return code_of(self._command)
        return f"{list(self._command)!r} {sorted(self._env)!r}"

    async def setup(self) -> None:
        from holdfast.gateway.wires.all import WIRES

        self._gateway = await Gateway(WIRES).__aenter__()

    async def acleanup(self) -> None:
        if self._gateway is not None:
            await self._gateway.__aexit__(None, None, None)

    async def rollout(self, t: Rollout) -> Returned:
        assert self._gateway is not None, "a processor is set up first"
        trajectory = AgentTrajectory(t.session)
        binding = self._gateway.bind(trajectory)
        try:
            found = await self._watched(t, trajectory, binding)
        except AgentFailed:
            if trajectory.limit is not None:
                # It was told of the limit, and fell over it.
                raise Truncated(trajectory.limit.reason, returned=trajectory.reward) from None
            raise
        finally:
            self._gateway.release(binding)
            await trajectory.aclose()
        if trajectory.limit is not None:
            raise Truncated(trajectory.limit.reason, returned=trajectory.reward)
        return trajectory.reward if found is None else found

    async def _watched(self, t: Rollout, trajectory: AgentTrajectory, binding: Binding) -> Returned:
        """The agent's result. Whatever else happens first ends the agent."""
        agent = asyncio.create_task(self._run(t, binding), name=f"agent of {trajectory.name}")
        broken = asyncio.create_task(trajectory.broken.wait())
        try:
            while not agent.done():
                await asyncio.wait(
                    {agent, broken}, timeout=LOOK, return_when=asyncio.FIRST_COMPLETED
                )
                if broken.done() and t.session.broken is not None:
                    raise t.session.broken
                if trajectory.is_silent(self._silence):
                    raise t.session.failed(
                        AgentSilent(f"the agent asked nothing for {self._silence:g} s")
                    )
            return agent.result()
        finally:
            broken.cancel()
            await end(agent)

    async def _run(self, t: Rollout, binding: Binding) -> Returned:
        if callable(self._command):
            found: Any = self._command(binding, t.task)
            result: Returned = await found if inspect.isawaitable(found) else found
            return result
        with tempfile.TemporaryDirectory(prefix="holdfast-agent-") as scratch:
            folder = self._folder(t) or Path(scratch)
            more = self._env
            env = environment(binding, t.task, model=t.voice.policy.model, folder=folder, more=more)
            process = AgentProcess(self._command, folder=folder, env=env, cwd=self._cwd)
            await process.start()
            try:
                code = await process.wait()
            finally:
                await process.end()
            if code != 0:
                how = f"signal {-code}" if code < 0 else f"exit code {code}"
                raise AgentFailed(f"the agent ended with {how}: {process.last_words}")
        return None

    def _folder(self, t: Rollout) -> Path | None:
        if self._logs is None:
            return None
        attempt = max(1, len(t.session.history.attempts) + t.session.has_prelude)
        name = f"{t.key.task}-{t.key.sample}".replace("/", "_")
        folder = self._logs / t.key.run / name / str(attempt)
        folder.mkdir(parents=True, exist_ok=True)
        return folder
