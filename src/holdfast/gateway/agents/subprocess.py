"""BlackBoxRolloutProcessor runs an agent that is a program, with one process for each attempt.

The program gets the gateway's address by environment variables. When the program, the gateway or
the engine dies, the program is started again, and its calls are answered from the record until it
reaches the point where it was. `workspace` describes the folder that it finds then.
"""

import inspect
import os
import re
import shutil
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Unpack

import msgspec
from msgspec import structs

from holdfast.environments.workspace import Workspace
from holdfast.environments.workspace.sandbox.processes import confinement
from holdfast.environments.workspace.threads import in_thread
from holdfast.gateway.address import LOOPBACK
from holdfast.gateway.agents.gateway_processor import (
    GatewayOptions,
    GatewayRolloutProcessor,
)
from holdfast.gateway.agents.process import (
    TASK_FILE,
    AgentProcess,
    SandboxedProcess,
    WorldProcess,
    environment,
    variables,
)
from holdfast.gateway.agents.temp_dirs import WORKING, scratch, trajectory_folder
from holdfast.gateway.agents.workspace import (
    FRESH,
    AgentWorkspace,
    FreshWorld,
    Restore,
    WorkspaceWorld,
    World,
)
from holdfast.gateway.calls.attempt_status import attempt_number
from holdfast.gateway.calls.trajectory import AgentTrajectory
from holdfast.gateway.protocol.messages import AgentFailed, AgentKilled
from holdfast.gateway.server import Binding
from holdfast.private_files import private_folder
from holdfast.records.encoding.declared import checks_arguments
from holdfast.records.encoding.file_name import file_name
from holdfast.records.encoding.redaction import hide_variables
from holdfast.records.errors import UsageError
from holdfast.records.task import Task
from holdfast.rollout.context import Rollout
from holdfast.rollout.processors.processor import Returned, code_of
from holdfast.worlds.contract.spec import Mount
from holdfast.worlds.forwarding import ADDRESS, FOLDER, SOCKET
from holdfast.worlds.running.environment import WorldEnvironment

Agent = Callable[[Binding, Task], Awaitable[Returned]]
"""An async function that is an agent in this process. It gets its address and key (`Binding`) and
its task, and may return its reward, or (turns, reward)."""


INTERPRETERS = re.compile(r"(python|pypy)[\d.]*|node|bun|bash|sh|zsh|ruby|perl")
INPUTS = "/tmp/holdfast"  # noqa: S108 - the container's
"""The folder in a container that has the task's file."""
PLAIN_OPTIONS = ("-u", "-B", "-I", "-O", "-E", "-s")
SCRIPTS = (".py", ".js", ".mjs", ".cjs", ".ts", ".sh", ".rb", ".pl")
"""The endings of files that these interpreters run."""


class BlackBoxRolloutProcessor(GatewayRolloutProcessor):
    """Runs `command` for each attempt, or awaits a callable.

    A process that ends with 0 has done its task. Its reward is the one that it posted to
    `/complete`, or the result of the run's scorer. Any other end is a failure, which is recorded
    with the last output and has no reward.
    """

    @checks_arguments(own="command resume_command world")
    def __init__(
        self,
        command: Sequence[str] | Agent,
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | Path | None = None,
        logs: str | Path | None = None,
        world: World = FRESH,
        resume_command: Sequence[str] | None = None,
        **options: Unpack[GatewayOptions],
    ):
        """Creates the processor. `cwd` is the working folder. By default, and always in a
        workspace's world, it is an empty folder for each attempt. `logs` is the folder that keeps
        the output of each attempt. By default, only the end of the output is kept, in errors.
        `resume_command` is run instead of `command` if the agent finds its workspace as it left
        it."""
        super().__init__(LOOPBACK, world, **options)
        _check_command(command)
        self._command = command
        if callable(command):
            self.address_source = "`binding.url` and `binding.key`"
        self._resume = command if resume_command is None else resume_command
        self._open = AsyncExitStack()
        self._shared = Path()
        """The folder of the gateway's Unix socket, while the processor is set up."""
        _check_surroundings(world, command, cwd, resume_command)
        self._env = dict(env or {})
        hide_variables(self._env)
        self._cwd = None if cwd is None else Path(cwd)
        # The agent runs in another folder and gets paths in this one, so they are absolute.
        self._logs = Path(logs).absolute() if logs is not None else None

    @property
    def identity(self) -> str:
        if callable(self._command):
            return code_of(self._command) + self.surroundings
        resume = "" if self._resume is self._command else f" {self._resume!r}"
        return f"{list(self._command)!r} {sorted(self._env)!r}{resume}{self.surroundings}"

    def check_setup(self) -> None:
        """Checks that the program and its script exist. Those of a workspace are in its sandbox and
        are not checked."""
        if not callable(self._command) and not isinstance(self.world, WorkspaceWorld):
            _check_program(self._command[0], cwd=self._cwd, path=self._env.get("PATH"))
            _check_script(self._command, cwd=self._cwd or Path())

    async def setup(self) -> None:
        self.check_setup()
        if not callable(self._command):
            async with scratch():
                pass  # Raises if agents' folders cannot be created there.
            await in_thread(confinement)  # Tried in a thread, not on the loop.
        if isinstance(self.world, WorkspaceWorld):
            self._shared = await self._open.enter_async_context(scratch(for_sockets=True))
            path = self._shared / SOCKET
            # Containers see the folder, in which any user of theirs may connect. Other users of
            # this machine cannot open its parent folder.
            self._shared.chmod(0o755)
            self._address = structs.replace(self._address, path=path)
        await super().setup()

    async def acleanup(self) -> None:
        await super().acleanup()
        await self._open.aclose()

    @property
    def mounts(self) -> tuple[Mount, ...]:
        return (Mount(str(self._shared), FOLDER),)

    async def run_agent(
        self, t: Rollout, binding: Binding, trajectory: AgentTrajectory
    ) -> Returned:
        if callable(self._command):
            command: Any = self._command(binding, t.task)
            result: Returned = await command if inspect.isawaitable(command) else command
            return result
        async with trajectory_folder(t.key) as folder:
            logs = self._logs_of(t) or folder
            home = next(
                (episode for episode in t.session.episodes if isinstance(episode, AgentWorkspace)),
                None,
            )
            process: AgentProcess | SandboxedProcess | WorldProcess
            if home is None:
                process = await self._run_process(self._command, t, binding, logs, folder)
            elif isinstance(home.workspace, WorldEnvironment):
                process = await self._run_in_world(home.workspace, home, t, binding, logs, folder)
            else:
                process = await self._run_in_workspace(home, t, binding, logs, folder)
            if self.is_mute(trajectory, trajectory.reward):
                raise self.never_answered(trajectory, process.last_output)
        return None

    async def _run_process(
        self, command: Sequence[str], t: Rollout, binding: Binding, logs: Path, folder: Path
    ) -> AgentProcess:
        model = t.speaker.policy.model
        env = environment(binding, t.task, model=model, folder=folder, more=self._env)
        fresh = folder / WORKING
        fresh.mkdir()
        arguments = command if self._cwd is not None else _absolute_paths(command)
        confined = isinstance(self.world, FreshWorld) and self.world.confined
        process = AgentProcess(
            arguments, folder=logs, env=env, cwd=self._cwd or fresh, confined=confined
        )
        await process.start()
        try:
            code = await process.wait()
        finally:
            await process.end()
        _check_exit_code(code, process.last_output)
        return process

    async def _run_in_workspace(
        self, home: AgentWorkspace, t: Rollout, binding: Binding, logs: Path, folder: Path
    ) -> SandboxedProcess:
        assert isinstance(home.workspace, Workspace)
        inputs = folder / "given"
        inputs.mkdir()
        command, env = self._prepared(home, t, binding, inputs)
        # The sandbox may run as user nobody.
        inputs.chmod(0o755)
        (inputs / TASK_FILE).chmod(0o644)
        launch = home.workspace.launch(command, env=env, read_only=[str(inputs)])
        process = SandboxedProcess(launch, logs / "stdout")
        _check_exit_code(await process.run(), process.last_output)
        return process

    async def _run_in_world(
        self,
        environment: WorldEnvironment,
        home: AgentWorkspace,
        t: Rollout,
        binding: Binding,
        logs: Path,
        folder: Path,
    ) -> WorldProcess:
        within = Binding(ADDRESS, binding.key, f"{ADDRESS}/t/{binding.key}")
        command, env = self._prepared(home, t, within, folder)
        world, task = environment.world, f"{INPUTS}/{TASK_FILE}"
        await world.write(task, (folder / TASK_FILE).read_bytes(), mode=0o644)
        env |= {"HOLDFAST_TASK": task}
        seconds = environment.agent_seconds
        process = WorldProcess(world, command, env, logs / "stdout", seconds)
        _check_exit_code(await process.run(), process.last_output)
        return process

    def _prepared(
        self, home: AgentWorkspace, t: Rollout, binding: Binding, folder: Path
    ) -> tuple[Sequence[str], dict[str, str]]:
        """Returns the agent's command and its variables. Writes the task into the folder."""
        model = t.speaker.policy.model
        env = variables(binding, t.task, model=model, folder=folder, more=self._env)
        command = self._resume if home.is_resumed else self._command
        assert not callable(command), "a workspace's world wants a command"
        return command, env | {"HOLDFAST_RESUMED": "1" if home.is_resumed else ""}

    def _logs_of(self, t: Rollout) -> Path | None:
        if self._logs is None:
            return None
        name = f"{file_name(t.key.task)}-{t.key.sample}"
        folder = self._logs / file_name(t.key.run) / name / str(attempt_number(t.session))
        private_folder(folder)
        (folder / TASK_FILE).write_bytes(msgspec.json.encode(t.task))
        return folder


def _check_command(command: object) -> None:
    if callable(command):
        return
    if (
        not isinstance(command, list | tuple)
        or not command
        or not all(isinstance(word, str) for word in command)
    ):
        raise UsageError(
            f'a command is a list of words, such as ["python", "agent.py"], not {command!r:.200}'
        )


def _check_surroundings(
    world: World, command: object, cwd: object, resume_command: Sequence[str] | None
) -> None:
    if not isinstance(world, FreshWorld | WorkspaceWorld):
        raise UsageError(f"a world is a FreshWorld or a WorkspaceWorld, not {world!r:.200}")
    if resume_command is not None:
        _check_command(resume_command)
        if not isinstance(world, WorkspaceWorld) or world.restore != Restore.LATEST:
            raise UsageError('resume_command goes with world=WorkspaceWorld(…, restore="latest")')
    if isinstance(world, WorkspaceWorld) and (callable(command) or cwd is not None):
        raise UsageError("in a workspace's world the agent is a command, and its cwd is that")


def _check_program(program: str, *, cwd: Path | None, path: str | None) -> None:
    if cwd is not None and not cwd.is_dir():
        raise UsageError(f"the agent's cwd {str(cwd)!r} is not a folder")
    is_path = "/" in program
    executable = None if is_path else shutil.which(program, path=path)
    if executable is None and (is_path or cwd is None):
        executable = shutil.which((cwd or Path()).absolute() / program)
    if executable is None:
        where = f"from {str((cwd or Path()).absolute())!r}" if is_path else "on PATH"
        raise UsageError(f"the agent's program {program!r} is not found {where}, or not executable")


def _check_script(command: Sequence[str], *, cwd: Path) -> None:
    """Checks that the script in a command such as `["python", "-u", "agent.py"]` exists. A command
    with `-c` or `-m` has no script."""
    program, *arguments = command
    script = next((word for word in arguments if word not in PLAIN_OPTIONS), "")
    if not INTERPRETERS.fullmatch(Path(program).name) or Path(script).suffix not in SCRIPTS:
        return
    if not (cwd / script).is_file():
        raise UsageError(f"the agent's script {script!r} is not found from {str(cwd.absolute())!r}")


def _absolute_paths(command: Sequence[str]) -> list[str]:
    """Returns the command with an absolute path for each word that names a file, so that it names
    the same file from any folder."""
    return [os.path.abspath(word) if os.path.isfile(word) else word for word in command]


def _check_exit_code(code: int, last_output: str) -> None:
    if code < 0:
        raise AgentKilled(f"signal {-code} ended the agent: {_last_line_first(last_output)}")
    if code > 0:
        raise AgentFailed(f"the agent ended with exit code {code}: {_last_line_first(last_output)}")


def _last_line_first(last_output: str) -> str:
    """Returns the output with its last line first. A report shows only the first line, and the last
    line of a traceback names the error."""
    last = last_output.rpartition("\n")[2].strip()
    return last_output or "it wrote nothing" if last == last_output else f"{last}\n{last_output}"
