"""Workspace: a folder per trajectory, with a shell and file tools, for coding tasks.

Commands run with limits of time, output and resources, without the driver's environment
variables, and within bubblewrap where it works. Nothing outlives its command but files, so that a
snapshot of the files is all of the state. What a command does, however bad, is an answer to the
policy; only what goes wrong on our side breaks the environment.
"""

import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from msgspec import structs

from holdfast.environments.workspace import folder as folders
from holdfast.environments.workspace import scoring, settings
from holdfast.environments.workspace.files import Files
from holdfast.environments.workspace.limits import ResourceLimits, WorkspaceLimit, amount
from holdfast.environments.workspace.sandbox import mounts, sandbox
from holdfast.environments.workspace.sandbox.command import (
    Bounds,
    CommandEnded,
    CommandStop,
    Launch,
    run,
)
from holdfast.environments.workspace.sandbox.output import Output
from holdfast.environments.workspace.sandbox.sandbox import Isolation, Sandbox, SandboxJob
from holdfast.environments.workspace.scoring import WorkspaceScoring
from holdfast.environments.workspace.snapshots.snapshot import Snapshots
from holdfast.environments.workspace.snapshots.tree import FileTree, give, scan, told, trim
from holdfast.environments.workspace.source import Source, digest_of
from holdfast.environments.workspace.threads import in_thread
from holdfast.records.errors import EnvironmentBroken, ToolSaysNo, UsageError
from holdfast.records.redaction import hide_variables
from holdfast.rollout.episodes.environment import (
    DEFAULT_TIMEOUT,
    Environment,
    Observation,
    Recovery,
)
from holdfast.rollout.tools.tool import Function, Tool

Result = TypeVar("Result")
TOOLS = ("shell", "read_file", "write_file", "edit_file", "list_files")
NOTHING: Mapping[str, str | bytes] = {}
LIMITS = ResourceLimits()
ROOM = WorkspaceLimit()
OURS = 300.0
"""Seconds that a call may take beyond its command: preparing, snapshots, cleaning up."""
LONGEST_COMMAND = 100_000
"""Bytes: the system takes no longer argument."""


class Workspace(Environment):
    """`files` maps paths to text or bytes (those that begin with `#!` can be executed), or is a
    folder that is copied.

    Give its tools to the policy, or use `step` with shell commands. `scoring` makes an action for
    `step` that runs tests which the policy has not seen.
    """

    recovery = Recovery.SNAPSHOT
    earns = False

    def __init__(
        self,
        files: Mapping[str, str | bytes] | str | Path = NOTHING,
        *,
        sandbox: Isolation | str = Isolation.AUTO,
        network: bool = False,
        command_timeout: float = 120.0,
        output_limit: int = 16 * 1024,
        limits: ResourceLimits = LIMITS,
        workspace_limit: WorkspaceLimit = ROOM,
        env: Mapping[str, str] | None = None,
        tools: Sequence[str] = TOOLS,
        read_only: Sequence[str] = (),
        interpreter: bool = True,
        root: str | None = None,
    ):
        self._source = Source(files)
        self._wanted = settings.isolation(sandbox)
        self._network = network
        self._bounds = settings.bounds(command_timeout, output_limit)
        self._limits = limits
        self._limit = workspace_limit
        self._given_env = dict(env or {})
        hide_variables(self._given_env)
        self._env = settings.variables(env or {}, interpreter)
        self._read_only = mounts.checked(tuple(read_only))
        if interpreter:
            self._read_only += mounts.interpreter()
        self._root = root
        self._tools = _named(self, tools)
        self._scorings: dict[str, WorkspaceScoring] = {}
        self._place = ""
        self._tree: FileTree | None = None
        """The folder as it is now, if that is known."""
        self.timeout = max(DEFAULT_TIMEOUT, command_timeout + OURS)

    # --- what an environment is

    @property
    def identity(self) -> str:
        given = (f"{name}={value}" for name, value in sorted(self._given_env.items()))
        return digest_of({}, self._source.digest, str(self._network), *given)

    @property
    def tools(self) -> Sequence[Tool | Function]:
        limit = self._bounds.seconds + OURS
        return [Tool(function, timeout=limit) for function in self._tools]

    @property
    def isolation(self) -> str:
        """`bwrap` or `none`; known once it is reset."""
        return str(self._sandbox.isolation)

    @property
    def path(self) -> str:
        """Where the folder is on this machine; another one after each reset."""
        if not self._place:
            raise UsageError("the workspace is not open")
        return os.path.join(self._place, folders.FILES)

    async def reset(self, *, seed: int) -> Observation:
        del seed
        await self._open()
        self._snapshots = Snapshots(self.blobs)
        tree = await in_thread(self._begin)
        seen = self._files.listed(".", tree)
        return Observation(seen, info={"sandbox": self.isolation})

    async def restore(self, state: bytes) -> None:
        await self._open()
        self._snapshots = Snapshots(self.blobs)
        await self._snapshots.restore(self.path, state)
        await in_thread(lambda: give(self.path, self._sandbox.owner))

    async def snapshot(self) -> bytes:
        tree = self._tree = await in_thread(self._known_tree)
        return await self._snapshots.take(self.path, tree)

    async def close(self) -> None:
        if self._place:
            await in_thread(self._leave)

    async def step(self, action: str) -> Observation:
        """Runs a shell command, or what `scoring` has made."""
        if (wanted := self._scorings.get(action)) is not None:
            return await self._score(wanted)
        scoring.check_none(action)
        ended, note = await self._execute(action)
        return Observation(self._said(ended, note), info={"exit_code": ended.exit_code})

    def scoring(
        self,
        command: str,
        files: Mapping[str, str | bytes] | None = None,
        *,
        keep: Sequence[str] | None = None,
        timeout: float | None = None,
    ) -> str:
        """An action for `step`: runs `command` in a fresh folder with what is in the workspace
        (only the paths in `keep`, if given) and then `files`. Its reward is 1.0 where the command
        ends with 0, and, if it is pytest, tests passed and none failed; `info` has the numbers.
        """
        chosen = None if keep is None else tuple(keep)
        made = scoring.make(command, files or {}, keep=chosen, timeout=timeout)
        self._scorings[made.action] = made
        return made.action

    # --- programs that work in it by themselves

    def launch(
        self, words: Sequence[str], *, env: Mapping[str, str], read_only: Sequence[str] = ()
    ) -> Launch:
        """Starts a program whose home and working folder the workspace is, with the workspace's
        own variables and `env`; it has the network, and sees `read_only`, too. Whoever starts it
        ends it, and says `touched` when the files are looked at."""
        job = self._job(f"exec {shlex.join(words)}", self.path, env)
        seen = (*job.read_only, *mounts.checked(tuple(read_only)))
        return self._sandbox.launch(structs.replace(job, network=True, read_only=seen))

    def touched(self) -> None:
        """Something else than this workspace's own commands may have changed the files."""
        self._tree = None

    async def check_room(self) -> bool:
        """Whether what is in it is within its limit."""
        tree = self._tree = await in_thread(self._known_tree)
        return tree.fits(self._limit)

    # --- tools

    async def shell(self, command: str, timeout: float | None = None) -> str:
        """Runs a shell command in the workspace and returns its output and exit code.

        Every command begins in the workspace's top folder. Only files in the workspace are kept:
        background processes end with the command. `timeout` is in seconds.
        """
        ended, note = await self._execute(command, timeout)
        return self._said(ended, note)

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
        tree = self._tree = await in_thread(self._known_tree)
        return self._files.listed(path, tree)

    # --- how

    async def _open(self) -> None:
        if self._place:
            await in_thread(self._leave)
        self._sandbox: Sandbox = await in_thread(lambda: sandbox.choose(self._wanted))
        self._place = await in_thread(lambda: folders.new_place(self._root))
        self._temporary = os.path.join(self._place, "tmp")
        for path in (self.path, self._temporary):
            folders.make(path)
        self._inode = os.lstat(self.path).st_ino
        self._files = Files(self.path, owner=self._sandbox.owner)

    def _begin(self) -> FileTree:
        self._source.write(self.path, self._files)
        give(self.path, self._sandbox.owner)
        tree = self._tree = self._known_tree()
        if not tree.fits(self._limit):
            raise UsageError(
                f"the workspace begins with {amount(tree.bytes)} in {len(tree.entries):,} files; "
                f"workspace_limit allows {self._limit}"
            )
        return tree

    def _leave(self) -> None:
        place, path = self._place, self.path
        self._sandbox.sweep(path)
        folders.remove(place)
        self._place, self._tree = "", None

    def _known_tree(self) -> FileTree:
        if self._tree is not None:
            return self._tree
        return scan(self.path, most=2 * self._limit.files)

    async def _execute(
        self, command: str, timeout: float | None = None
    ) -> tuple[CommandEnded, str]:
        """Runs it, and brings the folder back within its limit."""
        seconds = self._seconds(timeout)
        job = self._job(command, self.path)

        def work(stop: CommandStop) -> tuple[CommandEnded, str]:
            before = self._known_tree()
            self._tree = None
            ended = run(
                self._sandbox.launch(job),
                Bounds(seconds, self._bounds.output),
                stop=stop,
                watch=lambda: self._overfull(job.folder),
            )
            self._find_again()
            self._empty_temporary()
            self._tree, removed = trim(job.folder, before, self._limit)
            return ended, told(removed, self._limit)

        return await _stoppable(work)

    async def _score(self, wanted: WorkspaceScoring) -> Observation:
        seconds = self._seconds(wanted.timeout)

        def work(stop: CommandStop) -> Observation:
            place = os.path.join(self._place, "score", folders.FILES)
            folders.remove(os.path.dirname(place))
            folders.make(place)
            files = Files(place, owner=self._sandbox.owner)
            try:
                scoring.prepare(wanted, self.path, files)
                give(place, self._sandbox.owner)
                extra = scoring.environment(wanted, self._sandbox.home(place), self._env)
                job = self._job(wanted.command, place, extra)
                bounds = Bounds(seconds, self._bounds.output)
                watch = lambda: self._overfull(place)  # noqa: E731
                ended = run(self._sandbox.launch(job), bounds, stop=stop, watch=watch)
                self._empty_temporary()
                text = self._said(ended, "", folder=place)
                return scoring.observe(wanted, ended, files, text=text)
            finally:
                self._sandbox.sweep(place)
                folders.remove(os.path.dirname(place))

        return await _stoppable(work)

    def _job(self, command: str, folder: str, extra: Mapping[str, str] | None = None) -> SandboxJob:
        if "\0" in command or len(command.encode("utf-8", "replace")) > LONGEST_COMMAND:
            raise ToolSaysNo(
                f"a command is text of at most {LONGEST_COMMAND:,} bytes without NUL: write it to "
                "a file and run that"
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

    def _overfull(self, folder: str) -> str:
        if scan(folder, most=2 * self._limit.files).fits(self._limit):
            return ""
        return f"stopped: the workspace may hold {self._limit}"

    def _find_again(self) -> None:
        """Without a sandbox, a command can remove the folder, which is a way to empty it; or put
        something else there, in which nothing may be removed for being too much."""
        try:
            found = os.lstat(self.path)
        except FileNotFoundError:
            folders.make(self.path)
            self._inode = os.lstat(self.path).st_ino
            return
        if found.st_ino != self._inode:
            raise EnvironmentBroken("a command put another folder in place of the workspace")

    def _empty_temporary(self) -> None:
        """As a private /tmp is; nothing but the workspace outlives a command."""
        if not os.path.isdir(self._temporary) or os.listdir(self._temporary):
            folders.remove(self._temporary)
            folders.make(self._temporary)

    def _said(self, ended: CommandEnded, note: str, *, folder: str = "") -> str:
        # Without a sandbox they are folders of this machine, others each time.
        names = {folder or self.path: mounts.PLACE, self._temporary: "/tmp"}  # noqa: S108
        rename = {os.fsencode(old): os.fsencode(new) for old, new in names.items()}
        text = ended.output.text(rename).rstrip("\n")
        ending = f"[{ended.stopped}]" if ended.stopped else f"[exit code {ended.exit_code}]"
        return "\n".join(part for part in (text, note, ending) if part)

    def _write(self, path: str, body: bytes) -> None:
        tree = self._known_tree()
        self._files.check_room(path, len(body), tree=tree, limit=self._limit)
        self._tree = None
        self._files.write(path, body)

    def _edit(self, path: str, old: str, new: str) -> None:
        try:
            text = self._files.read(path).decode()
        except UnicodeDecodeError:
            raise ToolSaysNo(f"{path} is not UTF-8 text") from None
        found = text.count(old) if old else 0
        if found != 1:
            raise ToolSaysNo(f"`old` occurs {found} times in {path}, not once; nothing was changed")
        self._write(path, text.replace(old, new).encode("utf-8", "replace"))


async def _stoppable(work: Callable[[CommandStop], Result]) -> Result:
    stop = CommandStop()
    try:
        return await in_thread(lambda: work(stop), interrupt=stop.set)
    finally:
        stop.close()


def _named(workspace: Workspace, names: Sequence[str]) -> list[Function]:
    for name in names:
        if name not in TOOLS:
            raise UsageError(f"a workspace has no tool {name!r}; there are {', '.join(TOOLS)}")
    return [getattr(workspace, name) for name in names]
