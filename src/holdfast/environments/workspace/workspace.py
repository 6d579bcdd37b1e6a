"""Workspace: a folder with a shell and file tools for each trajectory, for coding tasks.

Commands run with limits of time, output and resources, without the driver's environment variables,
and within bubblewrap if that works. Only files outlive a command, so a snapshot of the files is the
whole state. Whatever a command does is a result for the policy. Only an error of Holdfast or of the
machine breaks the environment.
"""

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from msgspec import structs

from holdfast.environments.workspace import folder as folders
from holdfast.environments.workspace import scoring
from holdfast.environments.workspace.files import Files
from holdfast.environments.workspace.limits import ResourceLimits, WorkspaceLimit
from holdfast.environments.workspace.sandbox import mounts, sandbox
from holdfast.environments.workspace.sandbox.command import (
    Bounds,
    CommandEnded,
    CommandStop,
    Launch,
    run,
    run_in_thread,
)
from holdfast.environments.workspace.sandbox.sandbox import Isolation, Sandbox, SandboxJob
from holdfast.environments.workspace.scoring import WorkspaceScoring
from holdfast.environments.workspace.snapshots.snapshot import Snapshots
from holdfast.environments.workspace.snapshots.tree import (
    FileTree,
    chown_all,
    format_removed,
    scan,
    trim,
)
from holdfast.environments.workspace.source import Source, digest_of
from holdfast.environments.workspace.threads import in_thread
from holdfast.records.encoding.redaction import hide_variables
from holdfast.records.errors import EnvironmentBroken, ToolSaysNo, UsageError
from holdfast.rollout.episodes.environment import (
    DEFAULT_TIMEOUT,
    Environment,
    Observation,
    Recovery,
)
from holdfast.rollout.tools.tool import Function, Tool
from holdfast.worlds.contract.output import Output, amount

Result = TypeVar("Result")
TOOLS = ("shell", "read_file", "write_file", "edit_file", "list_files")
NO_FILES: Mapping[str, str | bytes] = {}
LIMITS = ResourceLimits()
WORKSPACE_LIMIT = WorkspaceLimit()
OVERHEAD_SECONDS = 300.0
"""The most seconds of a call in addition to those of its command: for preparing, snapshots and
cleaning up."""
MAX_COMMAND_BYTES = 100_000
"""The most bytes of a command. The operating system limits the length of a program's argument."""


class Workspace(Environment):
    """A folder with a shell and file tools.

    `files` maps paths to text or bytes (files that begin with `#!` are executable), or is a folder
    to copy. Give the workspace's tools to the policy, or call `step` with shell commands. `scoring`
    makes an action for `step` that runs hidden tests.
    """

    recovery = Recovery.SNAPSHOT
    earns = False

    def __init__(
        self,
        files: Mapping[str, str | bytes] | str | Path = NO_FILES,
        *,
        sandbox: Isolation | str = Isolation.AUTO,
        network: bool = False,
        command_timeout: float = 120.0,
        output_limit: int = 16 * 1024,
        limits: ResourceLimits = LIMITS,
        workspace_limit: WorkspaceLimit = WORKSPACE_LIMIT,
        env: Mapping[str, str] | None = None,
        tools: Sequence[str] = TOOLS,
        read_only: Sequence[str] = (),
        interpreter: bool = True,
        root: str | None = None,
    ):
        self._source = Source(files)
        self._isolation_option = _isolation(sandbox)
        self._network = network
        self._bounds = _bounds(command_timeout, output_limit)
        self._limits = limits
        self._limit = workspace_limit
        self._user_env = dict(env or {})
        hide_variables(self._user_env)
        self._env = _variables(self._user_env, interpreter)
        self._read_only = mounts.check_paths(tuple(read_only))
        if interpreter:
            self._read_only += mounts.interpreter()
        self._root = root
        self._tools = _select_tools(self, tools)
        self._scorings: dict[str, WorkspaceScoring] = {}
        self._parent = ""
        """The folder that holds the workspace and its temporary files."""
        self._snapshots: Snapshots | None = None
        """The snapshots of this episode, once there are any."""
        self._tree: FileTree | None = None
        """The present content of the workspace, if known."""
        self.timeout = max(DEFAULT_TIMEOUT, command_timeout + OVERHEAD_SECONDS)

    # --- the environment

    @property
    def identity(self) -> str:
        variables = (f"{name}={value}" for name, value in sorted(self._user_env.items()))
        return digest_of({}, self._source.digest, str(self._network), *variables)

    @property
    def tools(self) -> Sequence[Tool | Function]:
        limit = self._bounds.seconds + OVERHEAD_SECONDS
        return [Tool(function, timeout=limit) for function in self._tools]

    @property
    def isolation(self) -> str:
        """How commands are isolated: `bwrap` or `none`. Known after the reset."""
        return str(self._sandbox.isolation)

    @property
    def path(self) -> str:
        """The workspace's folder on this machine. Each reset creates a new folder."""
        if not self._parent:
            raise UsageError("the workspace is not open")
        return os.path.join(self._parent, folders.FILES)

    async def reset(self, *, seed: int) -> Observation:
        del seed
        await self._open()
        self._snapshots = None
        tree = await in_thread(self._write_source)
        return Observation(self._files.list_tree(".", tree), info={"sandbox": self.isolation})

    async def restore(self, state: bytes) -> None:
        await self._open()
        self._snapshots = Snapshots(self.blobs)
        await self._snapshots.restore(self.path, state)
        await in_thread(lambda: chown_all(self.path, self._sandbox.owner))

    async def snapshot(self) -> bytes:
        tree = self._tree = await in_thread(self._current_tree)
        self._snapshots = self._snapshots or Snapshots(self.blobs)
        return await self._snapshots.take(self.path, tree)

    async def close(self) -> None:
        if self._parent:
            await in_thread(self._remove)

    async def step(self, action: str) -> Observation:
        """Runs a shell command, or the scoring if the action comes from `scoring`."""
        if (own := self._scorings.get(action)) is not None:
            return await self._score(own)
        scoring.check_not_scoring(action)
        ended, note = await self._execute(action)
        return Observation(self._format_result(ended, note), info={"exit_code": ended.exit_code})

    def scoring(
        self,
        command: str,
        files: Mapping[str, str | bytes] | None = None,
        *,
        keep: Sequence[str] | None = None,
        timeout: float | None = None,
    ) -> str:
        """Makes an action for `step` that scores the workspace.

        The action copies the workspace's files (only the paths in `keep`, if given) and `files`
        into a new folder, and runs `command` there. The reward is 1.0 if the command exits with 0
        and, for pytest, if at least one test passed and none failed. `info` has the numbers of
        tests.
        """
        paths = None if keep is None else tuple(keep)
        made = scoring.make(command, files or {}, keep=paths, timeout=timeout)
        self._scorings[made.action] = made
        return made.action

    # --- other programs in the workspace

    def launch(
        self, argv: Sequence[str], *, env: Mapping[str, str], read_only: Sequence[str] = ()
    ) -> Launch:
        """Prepares a program whose home and working folder is the workspace.

        The program gets the workspace's variables and `env`, may use the network, and can read the
        paths in `read_only`. The caller starts and ends it, and calls `touched` before the files
        are used again.
        """
        job = self._job(f"exec {shlex.join(argv)}", self.path, env)
        readable = (*job.read_only, *mounts.check_paths(tuple(read_only)))
        return self._sandbox.launch(structs.replace(job, network=True, read_only=readable))

    def touched(self) -> None:
        """Tells the workspace that another program may have changed the files."""
        self._tree = None

    async def check_room(self) -> bool:
        """Returns whether the workspace's files are within their limit."""
        tree = self._tree = await in_thread(self._current_tree)
        return tree.fits(self._limit)

    # --- tools

    async def shell(self, command: str, timeout: float | None = None) -> str:
        """Runs a shell command in the workspace and returns its output and exit code.

        Every command begins in the workspace's top folder. Only files in the workspace are kept:
        background processes end with the command. `timeout` is in seconds.
        """
        ended, note = await self._execute(command, timeout)
        return self._format_result(ended, note)

    async def read_file(self, path: str, start: int = 1, lines: int | None = None) -> str:
        """Returns a text file, or `lines` lines of it from line `start` on."""
        if start < 1 or (lines is not None and lines < 1):
            raise ToolSaysNo("lines are counted from 1, and at least one is read")
        body = await in_thread(lambda: self._files.read(path))
        if start > 1 or lines is not None:
            stop = None if lines is None else start - 1 + lines
            body = b"".join(body.splitlines(keepends=True)[start - 1 : stop])
        output = Output(self._bounds.output)
        output.add(body)
        return output.text()

    async def write_file(self, path: str, content: str) -> str:
        """Writes a text file, with the folders that it needs. What was in it is replaced."""
        body = content.encode("utf-8", "replace")
        await in_thread(lambda: self._write(path, body))
        return f"wrote {len(body):,} bytes to {path}"

    async def edit_file(self, path: str, old: str, new: str) -> str:
        """Replaces `old`, which must occur exactly once in the file, by `new`."""
        await in_thread(lambda: self._edit(path, old, new))
        return f"edited {path}"

    async def list_files(self, path: str = ".") -> str:
        """Lists all files and folders in a folder of the workspace."""
        tree = self._tree = await in_thread(self._current_tree)
        return self._files.list_tree(path, tree)

    # --- folders

    async def _open(self) -> None:
        if self._parent:
            await in_thread(self._remove)
        self._sandbox: Sandbox = await in_thread(lambda: sandbox.choose(self._isolation_option))
        self._parent = await in_thread(lambda: folders.new_place(self._root))
        self._temporary = os.path.join(self._parent, "tmp")
        for path in (self.path, self._temporary):
            folders.make(path)
        self._inode = os.lstat(self.path).st_ino
        self._files = Files(self.path, owner=self._sandbox.owner)

    def _write_source(self) -> FileTree:
        self._source.write(self.path, self._files)
        chown_all(self.path, self._sandbox.owner)
        tree = self._tree = self._current_tree()
        if not tree.fits(self._limit):
            raise UsageError(
                f"the workspace begins with {amount(tree.bytes)} in {len(tree.entries):,} files; "
                f"workspace_limit allows {self._limit}"
            )
        return tree

    def _remove(self) -> None:
        self._sandbox.kill_all_in(self.path)
        folders.remove(self._parent)
        self._parent, self._tree = "", None

    def _current_tree(self) -> FileTree:
        if self._tree is not None:
            return self._tree
        return scan(self.path, most=2 * self._limit.files)

    # --- commands

    async def _execute(
        self, command: str, timeout: float | None = None
    ) -> tuple[CommandEnded, str]:
        """Runs a command, and removes new files until the folder is within its limit. Returns how
        the command ended, and a note that names the removed files."""
        seconds = self._seconds(timeout)
        job = self._job(command, self.path)

        def work(stop: CommandStop) -> tuple[CommandEnded, str]:
            before = self._current_tree()
            self._tree = None
            ended = self._run(job, seconds, stop)
            self._check_folder()
            self._empty_temporary()
            self._tree, removed = trim(job.folder, before, self._limit)
            return ended, format_removed(removed, self._limit)

        return await run_in_thread(work)

    async def _score(self, own: WorkspaceScoring) -> Observation:
        seconds = self._seconds(own.timeout)

        def work(stop: CommandStop) -> Observation:
            parent = os.path.join(self._parent, "score")
            folder = os.path.join(parent, folders.FILES)
            folders.remove(parent)
            folders.make(folder)
            files = Files(folder, owner=self._sandbox.owner)
            try:
                scoring.prepare(own, self.path, files)
                chown_all(folder, self._sandbox.owner)
                extra = scoring.environment(own, self._sandbox.home(folder), self._env)
                ended = self._run(self._job(own.command, folder, extra), seconds, stop)
                self._empty_temporary()
                text = self._format_result(ended, "", folder=folder)
                return scoring.observe(own, ended, files, text=text)
            finally:
                self._sandbox.kill_all_in(folder)
                folders.remove(parent)

        return await run_in_thread(work)

    def _run(self, job: SandboxJob, seconds: float, stop: CommandStop) -> CommandEnded:
        def watch() -> str:
            if scan(job.folder, most=2 * self._limit.files).fits(self._limit):
                return ""
            return f"stopped: the workspace may hold {self._limit}"

        bounds = Bounds(seconds, self._bounds.output)
        return run(self._sandbox.launch(job), bounds, stop=stop, watch=watch)

    def _job(self, command: str, folder: str, extra: Mapping[str, str] | None = None) -> SandboxJob:
        if "\0" in command or len(command.encode("utf-8", "replace")) > MAX_COMMAND_BYTES:
            raise ToolSaysNo(
                f"a command is text of at most {MAX_COMMAND_BYTES:,} bytes without NUL: write it "
                "to a file and run that"
            )
        return SandboxJob(
            command=command.encode("utf-8", "replace").decode(),
            folder=folder,
            temporary=self._temporary,
            env={**self._env, **(extra or {})},
            limits=self._limits,
            network=self._network,
            read_only=self._read_only,
        )

    def _seconds(self, timeout: float | None) -> float:
        most = self._bounds.seconds
        if timeout is None:
            return most
        if not 0 < timeout <= most:
            raise ToolSaysNo(f"a command may take up to {most:g} s, not {timeout:g}")
        return timeout

    def _check_folder(self) -> None:
        """Checks that the workspace's folder was not replaced.

        Without a sandbox, a command can remove the folder. That counts as emptying it, so the
        folder is created again. A command can also put another folder in its place. That raises
        `EnvironmentBroken`, because files in that other folder must not be removed.
        """
        try:
            status = os.lstat(self.path)
        except FileNotFoundError:
            folders.make(self.path)
            self._inode = os.lstat(self.path).st_ino
            return
        if status.st_ino != self._inode:
            raise EnvironmentBroken("a command put another folder in place of the workspace")

    def _empty_temporary(self) -> None:
        """Empties the temporary folder, because only files in the workspace outlive a command."""
        if not os.path.isdir(self._temporary) or os.listdir(self._temporary):
            folders.remove(self._temporary)
            folders.make(self._temporary)

    def _format_result(self, ended: CommandEnded, note: str, *, folder: str = "") -> str:
        # Without a sandbox, the output may contain the real paths, which differ each time.
        names = {folder or self.path: mounts.WORKSPACE, self._temporary: "/tmp"}  # noqa: S108
        rename = {os.fsencode(old): os.fsencode(new) for old, new in names.items()}
        text = ended.output.text(rename).rstrip("\n")
        ending = f"[{ended.stopped}]" if ended.stopped else f"[exit code {ended.exit_code}]"
        return "\n".join(part for part in (text, note, ending) if part)

    def _write(self, path: str, body: bytes) -> None:
        tree = self._current_tree()
        self._files.check_room(path, len(body), tree=tree, limit=self._limit)
        self._tree = None
        self._files.write(path, body)

    def _edit(self, path: str, old: str, new: str) -> None:
        try:
            text = self._files.read(path).decode()
        except UnicodeDecodeError:
            raise ToolSaysNo(f"{path} is not UTF-8 text") from None
        occurrences = text.count(old) if old else 0
        if occurrences != 1:
            raise ToolSaysNo(
                f"`old` occurs {occurrences} times in {path}, not once; nothing was changed"
            )
        self._write(path, text.replace(old, new).encode("utf-8", "replace"))


# --- the arguments of a workspace


def _select_tools(workspace: Workspace, names: Sequence[str]) -> list[Function]:
    for name in names:
        if name not in TOOLS:
            raise UsageError(f"a workspace has no tool {name!r}; there are {', '.join(TOOLS)}")
    return [getattr(workspace, name) for name in names]


def _isolation(option: str) -> Isolation:
    try:
        return Isolation(option)
    except ValueError:
        raise UsageError(f"sandbox={option!r}: there are {', '.join(Isolation)}") from None


def _bounds(seconds: float, output: int) -> Bounds:
    if not 0 < seconds < float("inf") or output < 1:
        raise UsageError(f"command_timeout={seconds} and output_limit={output} must be above 0")
    return Bounds(seconds, output)


def _variables(env: Mapping[str, str], interpreter: bool) -> dict[str, str]:
    """Returns all variables of a command. The driver's variables are not among them, because they
    may contain keys and tokens."""
    paths = ["/usr/local/bin", "/usr/bin", "/bin", "/usr/local/sbin", "/usr/sbin", "/sbin"]
    if interpreter:
        paths.insert(0, os.path.join(sys.prefix, "bin"))
    for name, value in env.items():
        if not name or "=" in name or "\0" in name + value:
            raise UsageError(f"env: {name!r} cannot be the name of a variable, or its value is bad")
        if name in ("HOME", "TMPDIR"):
            raise UsageError(f"env: {name} is the workspace's own")
    return {
        "PATH": ":".join(paths),
        "LANG": "C.UTF-8",
        "TERM": "dumb",
        # Python checks bytecode by file times, which snapshots do not keep. And a repeated command
        # must print sets in the same order.
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONHASHSEED": "0",
        **env,
    }
