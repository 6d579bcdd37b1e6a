"""The process of `holdfast serve --engine vllm`.

It holds the port from its start, runs vLLM as a child process, prints the address, and ends vLLM.
It has the same options and progress lines as the embedded engine's process, and also ends when its
stdin closes. So a program that starts it can treat both alike. vLLM's own log goes to stderr.

However this process ends, vLLM ends with it, because `start` watches it from vLLM's side.
"""

import fcntl
import os
import re
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import msgspec

from holdfast.embedded.arguments import NOTE, ServeSettings, VllmSettings
from holdfast.embedded.child_process import work_of
from holdfast.embedded.serving import (
    SIGNALS,
    bind_port,
    bracket,
    check_key_needed,
    end_at_once,
    end_with_stdin,
    model_path,
    note,
    report_stage,
)
from holdfast.private_files import open_private, private_folder
from holdfast.records.errors import UsageError
from holdfast.server_tokens import LoopbackToken
from holdfast.vllm_server import start
from holdfast.vllm_server.command import command_of, environment_of
from holdfast.vllm_server.installation import Installation, find_vllm
from holdfast.vllm_server.version_route import ROUTE

POLL_SECONDS = 0.25
REPORT_SECONDS = 2.0
END_SECONDS = 15.0
"""How long vLLM may take to answer running requests and free its GPU, before it is killed."""
FIRST_SAMPLE_SECONDS = 120.0
_REQUEST_SECONDS = 10.0
_KEPT_LINES = 400
_MAX_STAGE = 100
_PREFIX = re.compile(r"^(\(.*?\) )?([A-Z]+ )?(\d\d-\d\d )?(\d\d:\d\d:\d\d )?(\[[^\]]*\] )?")
"""The prefix of vLLM's log lines: the process, the level, the time, the line of code."""
_ERROR = re.compile(r"^([\w.]+: )?[\w.]*(Error|Exception|error): ")
_NO_CAUSE = ("Engine core initialization failed", "WorkerProc initialization failed")
_ALL = ("0.0.0.0", "::")  # noqa: S104  # nothing is bound here


def serve(settings: ServeSettings) -> int:
    """Serves until SIGTERM, SIGINT, the end of stdin, or the end of vLLM. Raises `UsageError`."""
    check_key_needed(settings)
    vllm = find_vllm((settings.vllm or VllmSettings()).python)
    model = model_path(settings)
    end_at_once()
    if settings.until_stdin_closes:
        end_with_stdin()
    with ExitStack() as stack:
        sock = stack.enter_context(bind_port(settings))
        port = sock.getsockname()[1]
        place = stack.enter_context(own_place())
        token = settings.api_key
        if token is None:
            token = stack.enter_context(LoopbackToken(port)).value
        name = settings.name or model.name
        server = VllmProcess(
            vllm,
            command_of(vllm, settings, model=model, name=name, port=port),
            environment_of(vllm, settings, place=place, token=token),
            url=f"http://{bracket(_reachable(settings.host))}:{port}",
            token=token,
            place=place,
        )
        with server.run():
            return _serve(server, settings, name=name, port=port)


def _serve(server: "VllmProcess", settings: ServeSettings, *, name: str, port: int) -> int:
    vllm = server.vllm
    if vllm.caveat:
        _print_note(settings, vllm.caveat)
    server.wait_until_ready(settings)
    server.sample_once(name)
    server.name_version(settings.version)
    share = _share(settings, vllm)
    how = f"logprobs of the sampled distribution{'' if vllm.is_cpu else share}"
    _print_note(settings, f"vllm {vllm.version}, started here (port {port}), {how}")
    print(f"serving {name} at http://{bracket(settings.host)}:{port}", flush=True)  # noqa: T201
    return server.wait_for_end()


def _share(settings: ServeSettings, vllm: Installation) -> str:
    memory = None if settings.vllm is None else settings.vllm.memory
    return "" if memory is None or vllm.is_cpu else f", {100 * memory:.0f} % of the GPU's memory"


def _print_note(settings: ServeSettings, line: str) -> None:
    """Prints a note: as a line of progress for the parent process, or as a message for people."""
    if settings.progress:
        print(f"{NOTE}{line}", flush=True)  # noqa: T201
    else:
        note(f"engine: {line}")


def _reachable(host: str) -> str:
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}[host] if host in _ALL else host  # noqa: S104


# --- a place


@contextmanager
def own_place() -> Iterator[Path]:
    """Creates a folder for the files of one engine, for the duration of the block.

    First removes the folders of killed engines, whose locks nobody holds.
    """
    root = private_folder(Path(tempfile.gettempdir()) / f"holdfast-vllm-{os.geteuid()}")
    for other in root.iterdir():
        _remove_if_left(other)
    place = root / secrets.token_hex(4)
    place.mkdir(0o700)
    lock = open_private(place / "lock")
    fcntl.flock(lock, fcntl.LOCK_EX)
    try:
        yield place
    finally:
        start.remove_leftovers(str(place))
        os.close(lock)


def _remove_if_left(place: Path) -> None:
    with suppress(OSError):
        lock = open_private(place / "lock")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            start.remove_leftovers(str(place))
        finally:
            os.close(lock)


# --- the processes of vLLM


class VllmProcess:
    """vLLM's server and the processes that it starts, in their own process group."""

    def __init__(
        self,
        vllm: Installation,
        command: list[str],
        environment: dict[str, str],
        *,
        url: str,
        token: str,
        place: Path,
    ):
        self.vllm = vllm
        self._command = command
        self._environment = environment
        self._url = url
        self._token = token
        self._place = place
        self._lines: deque[str] = deque(maxlen=_KEPT_LINES)
        self._stop = threading.Event()
        self._process: subprocess.Popen[bytes]

    @contextmanager
    def run(self) -> Iterator[None]:
        """Runs vLLM during the block. After the block, none of its processes is left."""
        self._process = subprocess.Popen(  # noqa: S603  # the user's Python, our own module
            self._command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=self._environment,
            # In the working folder, a folder called vllm would be imported as the package.
            cwd=self._place,
            start_new_session=True,
        )
        copying = threading.Thread(target=self._copy_log, name="vllm's log", daemon=True)
        copying.start()
        try:
            yield
        finally:
            self._end()
            copying.join(_REQUEST_SECONDS)

    def _copy_log(self) -> None:
        assert self._process.stdout is not None, "it is a pipe"
        for line in self._process.stdout:
            sys.stderr.buffer.write(line)
            sys.stderr.buffer.flush()
            if text := _PREFIX.sub("", line.decode("utf-8", "replace").strip()):
                self._lines.append(text)

    def wait_until_ready(self, settings: ServeSettings) -> None:
        """Waits until vLLM answers. If vLLM ends by itself, raises `UsageError` with the error from
        vLLM's log. If a signal ended vLLM, raises `SystemExit`.

        Progress is reported only while vLLM computes or reads, so that the parent can give up on a
        vLLM that does neither.
        """
        work, reported = -1, 0.0
        while not self._is_healthy():
            self._check_running()
            if time.monotonic() - reported >= REPORT_SECONDS:
                before, work = work, _work_of_group(self._process.pid)
                reported = time.monotonic()
                if work != before and settings.progress:
                    report_stage(settings, self._stage())
            time.sleep(POLL_SECONDS)

    def sample_once(self, model: str) -> None:
        """Samples one token, because some models load, and end vLLM at their first request. If vLLM
        has ended, raises as `wait_until_ready` does. Other errors are left to the users of the
        engine."""
        body = {"model": model, "prompt": [1], "max_tokens": 1}
        try:
            self._request("POST", "/v1/completions", body, seconds=FIRST_SAMPLE_SECONDS)
        except OSError as error:
            if not isinstance(error, urllib.error.HTTPError) or error.code >= 500:
                with suppress(subprocess.TimeoutExpired):
                    self._process.wait(END_SECONDS)
            self._check_running()

    def _check_running(self) -> None:
        if (code := self._process.poll()) is not None:
            if code < 0:
                raise SystemExit(128 - code)
            raise UsageError(f"vLLM ended with exit status {code}: {self._cause()}")

    def _stage(self) -> str:
        return f"starting ({(self._lines[-1] if self._lines else 'its imports')[:_MAX_STAGE]})"

    def _cause(self) -> str:
        """Returns the first error in vLLM's log, because the other errors follow from it."""
        lines = list(self._lines)
        for at, line in enumerate(lines):
            if _ERROR.match(line) and not any(text in line for text in _NO_CAUSE):
                # pydantic's message is in the next line.
                return " ".join(lines[at : at + 2]) if "validation error" in line else line
        return " ".join(lines[-3:]) or "it wrote nothing"

    def _is_healthy(self) -> bool:
        try:
            self._request("GET", "/health")
        except OSError:
            return False
        return True

    def name_version(self, version: str) -> None:
        """Tells vLLM the version of the weights that it was started with."""
        if version != ServeSettings().version:
            self._request("POST", ROUTE, {"new_version": version})

    def _request(
        self, method: str, path: str, body: object = None, *, seconds: float = _REQUEST_SECONDS
    ) -> None:
        data = None if body is None else msgspec.json.encode(body)
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": "application/json"}
        request = urllib.request.Request(  # noqa: S310  # our own address
            f"{self._url}{path}", data, headers, method=method
        )
        # A proxy from the environment must not be used for an engine on this machine.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=seconds):
            return

    def wait_for_end(self) -> int:
        """Waits for SIGTERM, SIGINT or the end of stdin, and returns 0. If vLLM ends first, returns
        1."""
        for number in SIGNALS:
            signal.signal(number, lambda *_: self._stop.set())
        while self._process.poll() is None:
            if self._stop.wait(POLL_SECONDS):
                return 0
        code = self._process.returncode
        note(f"vLLM ended with exit status {code}: {self._cause()}")
        return 1

    def _end(self) -> None:
        """Ends the server, which ends vLLM's other processes. Then kills the rest of the process
        group."""
        with suppress(ProcessLookupError, subprocess.TimeoutExpired):
            self._process.terminate()
            self._process.wait(END_SECONDS)
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        deadline = time.monotonic() + END_SECONDS
        while _group(self._process.pid) and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS / 10)  # A worker that is still ending holds the GPU's memory.


def _group(group: int) -> list[int]:
    """Returns the processes of a group that still run."""
    numbers = []
    for entry in Path("/proc").iterdir() if Path("/proc").is_dir() else ():
        if entry.name.isdecimal():
            with suppress(OSError, IndexError):
                state, _, its_group = (entry / "stat").read_text().rsplit(")", 1)[1].split()[:3]
                if int(its_group) == group and state != "Z":
                    numbers.append(int(entry.name))
    return numbers


def _work_of_group(group: int) -> int:
    return sum(work_of(pid) for pid in _group(group))
