"""Starts commands within bubblewrap, or without isolation.

Bubblewrap gives a command its own mounts (the system read-only, the workspace writable, none of the
driver's), its own processes, and no network. Many machines forbid what bubblewrap needs, so it is
tested once per process.
"""

import contextlib
import functools
import logging
import os
import re
import select
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping
from enum import StrEnum

from msgspec import Struct

from holdfast.environments.workspace.limits import ResourceLimits
from holdfast.environments.workspace.sandbox import mounts
from holdfast.environments.workspace.sandbox.command import (
    Bounds,
    CommandEnded,
    CommandStop,
    Launch,
    run,
    spawn,
)
from holdfast.environments.workspace.sandbox.processes import confinement, kill_all
from holdfast.environments.workspace.sandbox.seccomp import no_user_namespaces
from holdfast.records.errors import EnvironmentBroken, UsageError

_log = logging.getLogger("holdfast.environments")
NOBODY = 65534
KILL_SECONDS = 30.0
TOOLS = ("nice", "setpriv", "prlimit")


class Isolation(StrEnum):
    AUTO = "auto"
    """Use bubblewrap if it works, and no isolation otherwise. `Workspace.isolation` says which is
    used."""
    BWRAP = "bwrap"
    """Use bubblewrap, and raise an error if it does not work."""
    NONE = "none"


class SandboxJob(Struct, frozen=True):
    """One command, and the resources that it may use."""

    command: str
    folder: str
    """The command's home and working folder."""
    temporary: str
    """The folder for temporary files, used if the command has no private /tmp."""
    env: Mapping[str, str]
    limits: ResourceLimits
    network: bool = False
    read_only: tuple[str, ...] = ()


class Sandbox(Struct, frozen=True):
    """How commands run on this machine.

    Without isolation, commands run as the user who runs Holdfast, with all of this user's rights.
    The number of processes is not limited then, because the limit would count all processes of that
    user.

    Within bubblewrap, if Holdfast runs as root, commands run as the user nobody. As root, they
    could change the machine's settings in any namespace and exceed the process limit.
    """

    isolation: Isolation

    @property
    def _is_bwrap(self) -> bool:
        return self.isolation is Isolation.BWRAP

    @property
    def owner(self) -> tuple[int, int] | None:
        """The user and group that a workspace's files belong to, or None if they are those of this
        process."""
        return (NOBODY, NOBODY) if self._is_bwrap and os.geteuid() == 0 else None

    def launch(self, job: SandboxJob) -> Launch:
        if self._is_bwrap:
            return _BubblewrapLaunch(job, is_root=self.owner is not None)
        return _PlainLaunch(job)

    def home(self, folder: str) -> str:
        """Returns the path at which a command sees `folder`."""
        return mounts.WORKSPACE if self._is_bwrap else folder

    def kill_all_in(self, folder: str) -> None:
        """Kills all processes that run in `folder`. Does nothing within bubblewrap, where no
        process outlives its command."""
        if not self._is_bwrap:
            kill_all(folder)


def choose(option: Isolation) -> Sandbox:
    """Returns the sandbox for the option. The first call tests bubblewrap and blocks for a
    moment."""
    _check_tools()
    if option is Isolation.NONE:
        return Sandbox(Isolation.NONE)
    trouble = why_no_bwrap()
    if not trouble:
        return Sandbox(Isolation.BWRAP)
    if option is Isolation.BWRAP:
        raise UsageError(
            f"sandbox='bwrap' does not work on this machine: {trouble}; allow it, or choose "
            "sandbox='none' and isolate the run in another way"
        )
    _warn_once(trouble)
    return Sandbox(Isolation.NONE)


@functools.cache
def _warn_once(trouble: str) -> None:
    _log.warning("workspaces run commands without a sandbox: %s", trouble)


@functools.cache
def why_no_bwrap() -> str:
    """Returns the reason why bubblewrap does not work, or ""."""
    if shutil.which("bwrap") is None:
        return "there is no `bwrap` (Debian: apt install bubblewrap)"
    with tempfile.TemporaryDirectory(prefix="holdfast-probe-") as folder:
        sandbox = Sandbox(Isolation.BWRAP)
        os.chmod(folder, 0o755)  # noqa: S103 - as a workspace is
        if sandbox.owner is not None:
            os.chown(folder, *sandbox.owner)
        job = SandboxJob(_PROBE, folder, folder, {"PATH": os.defpath}, ResourceLimits())
        stop = CommandStop()
        try:
            ended = run(sandbox.launch(job), Bounds(30.0, 4096), stop=stop)
        except (EnvironmentBroken, UsageError, OSError) as error:
            return str(error)
        finally:
            stop.close()
    return "" if ended.exit_code == 0 else ended.output.text().strip() or ended.stopped


_PROBE = (
    "if unshare --user true 2> /dev/null; then echo 'commands could make user namespaces in it, "
    "and mount what they like (bubblewrap 0.8 forbids that)'; exit 1; fi"
)


def _check_tools() -> None:
    missing = [name for name in TOOLS if shutil.which(name) is None]
    if missing or not hasattr(os, "pidfd_open"):
        raise UsageError(
            f"a workspace needs Linux with util-linux and coreutils; there is no {missing}"
        )


def _limited(job: SandboxJob, *, count_processes: bool) -> list[str]:
    shell = "/bin/bash" if os.path.exists("/bin/bash") else "/bin/sh"
    limits = job.limits.as_arguments(count_processes=count_processes)
    return [_tool("prlimit"), *limits, "--", shell, "-c", job.command]


# --- without isolation


class _PlainLaunch:
    def __init__(self, job: SandboxJob):
        self._job = job

    def start(self, stdout: int) -> "subprocess.Popen[bytes]":
        job = self._job
        argv = [
            *(_tool("nice"), "-n", str(job.limits.niceness)),
            *confinement().words,
            *(_tool("setpriv"), "--pdeathsig", "KILL", "--no-new-privs", "--"),
            *_limited(job, count_processes=False),
        ]
        env = {**job.env, "HOME": job.folder, "TMPDIR": job.temporary}
        return spawn(argv, stdout=stdout, cwd=job.folder, env=env)

    def end(self) -> None:
        kill_all(self._job.folder)

    def trouble(self, ended: CommandEnded) -> str:
        return ""

    def close(self) -> None: ...


# --- within bubblewrap


class _BubblewrapLaunch:
    def __init__(self, job: SandboxJob, *, is_root: bool):
        self._job = job
        self._is_root = is_root
        self._fds: list[int] = []
        self._gone = self._status = self._inner_status = -1
        self._report = self._inner_report = b""

    def start(self, stdout: int) -> "subprocess.Popen[bytes]":
        job = self._job
        self._gone, alive = self._pipe()
        self._status, status = self._pipe()
        passed_fds = [alive, status]
        arguments = [
            *(_ROOT if self._is_root else self._user(passed_fds)),
            *("--sync-fd", str(alive), "--json-status-fd", str(status)),
            *_NAMESPACES,
            *([] if job.network else ["--unshare-net"]),
            *mounts.arguments(
                job.folder,
                network=job.network,
                temporary=job.limits.temporary,
                read_only=job.read_only,
            ),
        ]
        # In a file, because processes in the sandbox could read a command line.
        passwd, group = self._file(mounts.ACCOUNTS), self._file(mounts.GROUPS)
        arguments += ["--perms", "0644", "--file", str(passwd), "/etc/passwd"]
        arguments += ["--perms", "0644", "--file", str(group), "/etc/group"]
        arguments += ["--remount-ro", "/"]
        options = self._file("\0".join(arguments) + "\0")
        passed_fds += [passwd, group, options]
        argv = [
            *(_tool("nice"), "-n", str(job.limits.niceness)),
            *(_tool("bwrap"), "--args", str(options), "--"),
            *(
                self._as_nobody(passed_fds)
                if self._is_root
                else [_tool("setpriv"), "--no-new-privs", "--"]
            ),
            *_limited(job, count_processes=True),
        ]
        env = {**job.env, "HOME": mounts.WORKSPACE, "TMPDIR": "/tmp"}  # noqa: S108 - a private one
        try:
            return spawn(argv, stdout=stdout, cwd=job.folder, env=env, pass_fds=tuple(passed_fds))
        finally:
            # Now only the sandbox holds them, so they close when it ends.
            for fd in passed_fds:
                self._fds.remove(fd)
                os.close(fd)

    def _as_nobody(self, passed_fds: list[int]) -> list[str]:
        """Returns the beginning of a command that starts a second bubblewrap as the user nobody, in
        a user namespace of its own.

        The kernel counts processes per namespace, so each command has a separate process limit.
        """
        self._inner_status, status = self._pipe()
        passed_fds.append(status)
        return [
            *(_tool("setpriv"), "--reuid", str(NOBODY), "--regid", str(NOBODY), "--clear-groups"),
            *("--bounding-set=-all", "--inh-caps=-all", "--no-new-privs", "--"),
            *(_tool("bwrap"), "--dev-bind", "/", "/", "--chdir", mounts.WORKSPACE),
            *("--json-status-fd", str(status), *self._user(passed_fds), "--"),
        ]

    def _user(self, passed_fds: list[int]) -> list[str]:
        """Returns the options for a user namespace in which no further user namespace can be
        created."""
        options = ["--unshare-user", "--cap-drop", "ALL"]
        options += ["--uid", str(mounts.USER), "--gid", str(mounts.USER)]
        if _can_disable_userns():
            return [*options, "--disable-userns"]
        if (program := no_user_namespaces()) is None:
            return options
        seccomp = self._file(program)
        passed_fds.append(seccomp)
        return [*options, "--seccomp", str(seccomp)]

    def end(self) -> None:
        """Kills the first process of the pid namespace and waits for its end.

        The kernel then kills all other processes of the namespace before the first one ends.
        Usually the first process dies with bwrap, but not if bwrap was killed before it could
        arrange that.
        """
        self._report = _read_available(self._status)
        if (match := _FIRST.search(self._report)) is not None:
            with contextlib.suppress(ProcessLookupError):
                first = os.pidfd_open(int(match[1]))
                self._fds.append(first)
                if _is_first_of_a_namespace(int(match[1])):
                    signal.pidfd_send_signal(first, signal.SIGKILL)
                    self._wait(first)
        self._wait(self._gone)
        if self._is_root:
            self._inner_report = _read_available(self._inner_status)

    def _wait(self, fd: int) -> None:
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        if not poll.poll(KILL_SECONDS * 1000):
            raise EnvironmentBroken(f"a sandbox is not gone {KILL_SECONDS:g} s after it was killed")

    def trouble(self, ended: CommandEnded) -> str:
        has_started = not self._is_root or _FIRST.search(self._inner_report) is not None
        if b'"exit-code"' in self._report and has_started:
            return ""
        return f"bwrap ended by itself ({ended.exit_code}): {ended.output.text()[-500:].strip()}"

    def close(self) -> None:
        while self._fds:
            os.close(self._fds.pop())

    def _pipe(self) -> tuple[int, int]:
        reading, writing = os.pipe2(os.O_CLOEXEC)
        self._fds += [reading, writing]
        return reading, writing

    def _file(self, content: str | bytes) -> int:
        fd = os.memfd_create("holdfast", os.MFD_CLOEXEC)
        self._fds.append(fd)
        os.write(fd, os.fsencode(content))
        os.lseek(fd, 0, os.SEEK_SET)
        return fd


def _is_first_of_a_namespace(process: int) -> bool:
    """Returns whether the process is the first process of a pid namespace. This is false if the pid
    belongs to another process by now."""
    try:
        with open(f"/proc/{process}/status", "rb") as file:
            return any(line.startswith(b"NSpid:") and line.split()[2:] == [b"1"] for line in file)
    except (FileNotFoundError, ProcessLookupError):
        return False


_FIRST = re.compile(rb'"child-pid": (\d+)')
_NAMESPACES = [
    *("--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"),
    *("--hostname", "workspace", "--die-with-parent", "--new-session"),
]
_ROOT = [
    *("--cap-drop", "ALL", "--cap-add", "CAP_SETUID"),
    *("--cap-add", "CAP_SETGID", "--cap-add", "CAP_SETPCAP"),
]


@functools.cache
def _tool(name: str) -> str:
    """Returns the full path of a tool, which is found even if a command has another PATH."""
    path = shutil.which(name)
    if path is None:
        raise UsageError(f"a workspace needs `{name}` (util-linux, coreutils)")
    return path


@functools.cache
def _can_disable_userns() -> bool:
    usage = subprocess.run([_tool("bwrap"), "--help"], capture_output=True, check=False)  # noqa: S603
    return b"--disable-userns" in usage.stdout + usage.stderr


def _read_available(pipe: int) -> bytes:
    os.set_blocking(pipe, False)
    try:
        return os.read(pipe, 4096)
    except BlockingIOError:
        return b""
