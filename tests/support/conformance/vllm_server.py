"""A real vLLM on the CPU, as a process group of its own.

vLLM is three processes: a kill that hits only the first leaves the others behind with 2 GB, so all
of them are killed together. Knows nothing of Holdfast.
"""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

READY_SECONDS = 900.0
"""On a busy machine, a start of one minute takes many."""
MODEL = "tiny"
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_SERVER_DEV_MODE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "OMP_NUM_THREADS": "1",
}
OPTIONS = (
    *("--served-model-name", MODEL, "--host", "127.0.0.1", "--dtype", "float32"),
    *("--max-num-seqs", "64", "--enforce-eager", "--enable-scale-out"),
    # With the default, a seeded request ends the server ("CPU Generator does not use offset").
    *("--max-num-batched-tokens", "32768"),
)


class VllmServer:
    """Starting takes about a minute. The port stays the same for the life of this handle."""

    def __init__(
        self,
        python: Path,
        folder: Callable[[], Path],
        *,
        longest: int,
        options: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ):
        self._environment = dict(environment or {})
        self._python = python
        self._folder = folder
        self._longest = longest
        self._options = options
        self._port = _free_port()
        self._process: subprocess.Popen[bytes] | None = None
        # Its working folder must hold no folder that is called like a package.
        self._place = Path(tempfile.gettempdir()) / f"holdfast-vllm-{os.getpid()}-{self._port}"
        self.url = f"http://127.0.0.1:{self._port}"
        self.model = MODEL

    def start(self) -> None:
        """Returns when it is healthy; does nothing if it runs."""
        if self._process is not None:
            return
        self._place.mkdir(exist_ok=True)
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self._place,
                env=os.environ | ENVIRONMENT | self._environment,
                start_new_session=True,
            )
        try:
            self._wait_until_ready()
        except BaseException:
            self.kill()
            raise

    @property
    def log(self) -> Path:
        return self._place / "vllm.log"

    def stop(self) -> None:
        """SIGTERM, then SIGKILL to what is left of the group."""
        if self._process is None:
            return
        self._process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(30)
        self.kill()
        shutil.rmtree(self._place)

    def kill(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        _wait_until_gone(process.pid)

    def _command(self) -> list[str]:
        return [
            *(str(self._python), "-m", "vllm.entrypoints.openai.api_server"),
            *("--model", str(self._folder()), "--port", str(self._port)),
            *("--max-model-len", str(self._longest), *OPTIONS, *self._options),
        ]

    def _wait_until_ready(self) -> None:
        assert self._process is not None, "started"
        deadline = time.monotonic() + READY_SECONDS
        while not self._is_healthy():
            if (code := self._process.poll()) is not None:
                raise AssertionError(f"vLLM ended with status {code}:\n{self._tail()}")
            if time.monotonic() > deadline:
                raise AssertionError(
                    f"vLLM is not ready after {READY_SECONDS:g} s:\n{self._tail()}"
                )
            time.sleep(0.5)

    def _is_healthy(self) -> bool:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(f"{self.url}/health", timeout=5) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    def _tail(self) -> str:
        return self.log.read_text(errors="replace")[-4000:]


def _wait_until_gone(group: int) -> None:
    """A worker that is still dying holds the port's memory and the machine's cores."""
    for _ in range(500):
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return
        time.sleep(0.02)
    raise AssertionError(f"processes of group {group} survive SIGKILL")


_given: set[int] = set()
"""Ports of this process's servers, also of those that are down."""


def _free_port() -> int:
    # Below the ports that systems give to outgoing connections: none of those can take it away
    # while the server is down.
    for port in range(18_000 + os.getpid() % 1_000, 20_000):
        if port in _given:
            continue
        with socket.socket() as tried:
            try:
                tried.bind(("127.0.0.1", port))
            except OSError:
                continue
            _given.add(port)
            return port
    raise AssertionError("there is no free port")
