"""Container: one running container, with its commands, files and snapshots.

Files are read and written by commands in the container, so the world's own commands see the same
files. An image needs /bin/sh, cat, mkdir and stat.
"""

import asyncio
import contextlib
import errno
import os
import stat
from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.worlds.contract.failures import ProviderDown, WorldGone
from holdfast.worlds.contract.output import Output
from holdfast.worlds.contract.world import (
    COMMAND_SECONDS,
    FILE_LIMIT,
    NO_VARIABLES,
    OUTPUT_LIMIT,
    ExecResult,
    FileInfo,
    Use,
)
from holdfast.worlds.docker.api import ContainerApi, EngineRefusal
from holdfast.worlds.docker.creation import variables
from holdfast.worlds.docker.exec_stream import ExecStream, Sink
from holdfast.worlds.docker.images import MAX_LAYERS, Images

SNAPSHOTS = "holdfast/snapshot"
FILE_SECONDS = 60.0
KILL_SECONDS = 20.0
EXIT_LOOKS = 50
"""How often the exit code is read again while the engine has not noticed the end."""
KILLED = 137
START_PAUSES = (0.2, 1.0, 0.0)
"""The seconds to wait after each failed try to start a command."""
OWN_FAULT = "OCI runtime exec failed"
"""The engine's message if it could not start a command within a container."""

# The first line says which session to kill at a deadline; it is no part of the output.
_BEGIN = "echo $$; exec 2>&1; "
_LIST = _BEGIN + 'exec "$@"'
_TEXT = _BEGIN + 'if command -v bash >/dev/null; then exec bash -c "$1"; else exec sh -c "$1"; fi'
_KILL = """n=0; while [ $n -lt 20 ]; do n=$((n+1)); left=
for s in /proc/[0-9]*/stat; do read -r line < $s || continue; p=${s#/proc/}
rest=${line##*) }; set -- $1 $rest
[ "$5" = "$1" ] && [ "$2" != Z ] && { kill -9 ${p%/stat}; left=1; }; done 2>/dev/null
[ -z "$left" ] && exit 0; done; exit 1"""
_READ = (
    """[ -e "$1" ] || exit 102; [ -d "$1" ] && exit 121; [ -r "$1" ] || exit 113; exec cat "$1" """
)
_WRITE = """[ -d "$1" ] && exit 121; mkdir -p "$(dirname "$1")" && cat > "$1" || exit 105
[ -z "$2" ] || chmod "$2" "$1" """
_FOLDER = """[ -e "$1" ] || exit 102; [ -d "$1" ] || exit 120; cd "$1" || exit 113
for p in * .[!.]* ..?*; do [ -e "$p" ] || [ -L "$p" ] || continue
printf '%s %s\\0' "$(stat -c '%f %s' "./$p")" "$p"; done"""
_ERRORS = {
    100 + number: number
    for number in (errno.ENOENT, errno.EISDIR, errno.ENOTDIR, errno.EACCES, errno.EIO)
}
"""The errors of the scripts for files, by exit code. If a script cannot use a path, it exits with
100 plus the error's number."""


class Container:
    """A world that is a container. Its handle is its name."""

    def __init__(self, api: ContainerApi, images: Images, handle: str):
        self._api = api
        self._images = images
        self._handle = handle

    @property
    def handle(self) -> str:
        return self._handle

    # --- commands

    async def exec(
        self,
        command: str | Sequence[str],
        *,
        stdin: bytes = b"",
        timeout: float = COMMAND_SECONDS,
        output: int = OUTPUT_LIMIT,
        env: Mapping[str, str] = NO_VARIABLES,
        cwd: str = "",
        user: str = "",
    ) -> ExecResult:
        kept = Output(output)
        script = (_TEXT, command) if isinstance(command, str) else (_LIST, *command)
        settings = {"Env": variables(env), "WorkingDir": cwd, "User": user}
        code = await self._run(script, kept.add, stdin=stdin, timeout=timeout, settings=settings)
        return ExecResult(
            exit_code=KILLED if code is None else code,
            output=kept.text(),
            truncated=kept.total > output,
            timed_out=code is None,
        )

    async def _run(
        self,
        script: Sequence[str],
        sink: Sink,
        *,
        stdin: bytes = b"",
        timeout: float = FILE_SECONDS,
        settings: Mapping[str, Any] = NO_VARIABLES,
    ) -> int | None:
        """Runs a script with arguments. Returns its exit code, or None if it ran out of time.

        A script that did not start is tried again. If the container itself prevents the start (for
        example, its limit of processes is reached), the engine's message becomes the output.
        """
        for pause in START_PAUSES:
            first = _FirstLine(sink)
            code = await self._try(script, first, stdin, timeout=timeout, settings=settings)
            if code is None or first.has_begun:
                return code
            await self._check_startable(first.text())
            await asyncio.sleep(pause)
        sink(first.text().encode())
        return code

    async def _check_startable(self, message: str) -> None:
        """Raises `WorldGone` if the container does not run, and `ProviderDown` if the engine did
        not start the script. Returns if the container itself prevented the start."""
        if not await self.is_running():
            raise WorldGone(f"{self._handle} does not run: {message}")
        if not message.startswith(OWN_FAULT):
            raise ProviderDown(f"{self._api.address} did not start a command: {message.strip()}")

    async def _try(
        self,
        script: Sequence[str],
        first: "_FirstLine",
        stdin: bytes,
        *,
        timeout: float,
        settings: Mapping[str, Any],
    ) -> int | None:
        number = await self._begin(script, bool(stdin), settings)
        stream = await self._open(number)
        try:
            async with asyncio.timeout(timeout) as deadline:
                await stream.follow(stdin, first)
        except TimeoutError:
            if not deadline.expired():
                raise
            await self._kill(first.text())
            await self._rest_of(stream, first)
            return None
        except asyncio.CancelledError:
            # Whoever cancelled the call gives up the world if its engine does not answer.
            with contextlib.suppress(WorldGone, ProviderDown):
                await self._kill(first.text())
            raise
        finally:
            await stream.close()
        return await self._exit_code(number)

    async def _begin(
        self, script: Sequence[str], has_input: bool, settings: Mapping[str, Any]
    ) -> str:
        body = {
            "AttachStdin": has_input,
            "AttachStdout": True,
            "AttachStderr": True,
            "Cmd": ["/bin/sh", "-c", script[0], "sh", *script[1:]],
            **{name: value for name, value in settings.items() if value},
        }
        return str((await self._call(f"/containers/{self._handle}/exec", body))["Id"])

    async def _open(self, number: str) -> ExecStream:
        path = await self._api.path(f"/exec/{number}/start", None)
        try:
            return await ExecStream.open(self._api.address, path)
        except EngineRefusal as error:
            raise self._failed(error) from error

    async def _exit_code(self, number: str) -> int:
        for _ in range(EXIT_LOOKS):
            try:
                state = await self._api.get(f"/exec/{number}/json")
            except EngineRefusal as error:
                raise self._failed(error) from error
            if not state["Running"] and state["ExitCode"] is not None:
                break
            await asyncio.sleep(0.02)
        else:
            raise WorldGone(f"{self._handle}: a command lost its connection and goes on")
        code = int(state["ExitCode"])
        # The end of the whole container looks like the end of a command that was killed.
        if code == KILLED and not await self.is_running():
            raise WorldGone(f"{self._handle} was killed during a command")
        return code

    async def _kill(self, session: str) -> None:
        """Starts a process in the container that kills all processes of a command's session."""
        body = {"Cmd": ["/bin/sh", "-c", _KILL, "sh", session.strip()], "User": "0"}
        number = (await self._call(f"/containers/{self._handle}/exec", body))["Id"]
        await self._call(f"/exec/{number}/start", {"Detach": True})

    async def _rest_of(self, stream: ExecStream, sink: Sink) -> None:
        """Reads what a killed command had written. If the command does not end, restarts the
        container, which ends all processes and keeps the files."""
        try:
            async with asyncio.timeout(KILL_SECONDS):
                await stream.follow(b"", sink)
        except TimeoutError:
            await self._call(f"/containers/{self._handle}/restart", t=0)

    async def is_running(self) -> bool:
        try:
            state = (await self._api.get(f"/containers/{self._handle}/json"))["State"]
        except EngineRefusal as error:
            if error.status == 404:
                return False
            raise self._failed(error) from error
        return bool(state["Running"]) and not state["Paused"]

    async def _call(self, path: str, body: object = None, **query: object) -> Any:
        try:
            return await self._api.post(path, body, **query)
        except EngineRefusal as error:
            raise self._failed(error) from error

    def _failed(self, error: EngineRefusal) -> Exception:
        if error.status in (404, 409):  # It is not there, or does not run.
            return WorldGone(f"{self._handle}: {error.message}")
        return ProviderDown(f"{self._api.address}: {error.message}")

    # --- files

    async def read(self, path: str, *, most: int = FILE_LIMIT) -> bytes:
        body = await self._script((_READ, path), path, most=most + 1)
        if len(body) > most:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), path)
        return body

    async def write(self, path: str, content: bytes, *, mode: int | None = None) -> None:
        bits = "" if mode is None else f"{mode:o}"
        await self._script((_WRITE, path, bits), path, stdin=content)

    async def files(self, path: str) -> list[FileInfo]:
        body = await self._script((_FOLDER, path), path)
        rows = [row.split(" ", 2) for row in body.decode("utf-8", "replace").split("\0") if row]
        return sorted((_file_info(*row) for row in rows), key=lambda info: info.path)

    async def _script(
        self, script: Sequence[str], path: str, *, stdin: bytes = b"", most: int = FILE_LIMIT
    ) -> bytes:
        kept = bytearray()
        code = await self._run((_BEGIN + script[0], *script[1:]), _at_most(kept, most), stdin=stdin)
        if code == 0:
            return bytes(kept)
        if code is None:
            raise TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT), path)
        number = _ERRORS.get(code, errno.EIO)
        text = bytes(kept).decode("utf-8", "replace").strip()[-200:]
        raise OSError(number, text or os.strerror(number), path)

    # --- the whole

    async def snapshot(self, name: str) -> str:
        try:
            container = await self._api.get(f"/containers/{self._handle}/json")
            if await self._images.layers(container["Image"]) < MAX_LAYERS:
                await self._images.commit(self._handle, SNAPSHOTS, name)
            else:
                await self._images.squash(self._handle, container["Config"], SNAPSHOTS, name)
        except EngineRefusal as error:
            raise self._failed(error) from error
        return f"{SNAPSHOTS}:{name}"

    async def use(self) -> Use:
        path = f"/containers/{self._handle}/stats"
        try:
            stats = await self._api.get(path, **{"stream": False, "one-shot": True})
            container = await self._api.get(f"/containers/{self._handle}/json", size=True)
        except EngineRefusal as error:
            raise self._failed(error) from error
        cpu_seconds = stats["cpu_stats"]["cpu_usage"]["total_usage"] / 1e9
        return Use(cpu_seconds, container.get("SizeRw") or 0)

    async def destroy(self) -> None:
        await remove_container(self._api, self._handle)


async def remove_container(api: ContainerApi, handle: str) -> None:
    """Removes a container with its processes and volumes. Returns when it is gone."""
    for _ in range(EXIT_LOOKS):
        try:
            await api.delete(f"/containers/{handle}", force=True, v=True)
        except EngineRefusal as error:
            if error.status == 404:
                return
            if error.status != 409:
                raise ProviderDown(f"{api.address}: {error.message}") from error
        await asyncio.sleep(0.02)
    raise ProviderDown(f"{api.address} does not finish removing {handle}")


class _FirstLine:
    """Keeps the first line of an output, and passes the rest on."""

    def __init__(self, sink: Sink):
        self._sink = sink
        self._line = bytearray()

    def __call__(self, part: bytes) -> None:
        if not self._line.endswith(b"\n"):
            line, newline, part = part.partition(b"\n")
            self._line += line + newline
        if part:
            self._sink(part)

    @property
    def has_begun(self) -> bool:
        """Whether the script has begun, so that the first line is its process id."""
        return self.text().strip().isdigit()

    def text(self) -> str:
        return self._line.decode("ascii", "replace")


def _at_most(kept: bytearray, most: int) -> Sink:
    def add(part: bytes) -> None:
        kept.extend(part[: max(0, most - len(kept))])

    return add


def _file_info(mode: str, size: str, path: str) -> FileInfo:
    bits = int(mode, 16)
    return FileInfo(path, int(size), bits & 0o7777, stat.S_ISDIR(bits), stat.S_ISLNK(bits))
