"""A fake inference engine: a real HTTP server in its own process.

`FakeEngine` starts, kills, restarts and inspects it, without an event loop. The server itself is
`server`, and `python -m holdfast.testing.fake_engine` runs it by hand.

    with FakeEngine(faults=[Fault(FaultKind.RATE_LIMIT)]) as engine:
        policy = EnginePolicy(engine.url, engine.model)

The child process writes one line, `ready <url>`, when it can be called, and ends when its parent
ends.
"""

import argparse
import asyncio
import contextlib
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, ClassVar, Self

import msgspec

from holdfast.testing.fake_engine.faults import Fault
from holdfast.testing.fake_engine.options import (
    DEFAULT_VERSION,
    Counts,
    Dialect,
    FakeOptions,
    FakeStats,
    LogprobsMode,
    Seeds,
    SeenCall,
)

if TYPE_CHECKING:
    from holdfast.testing.fake_engine.server import FakeServer

START_SECONDS = 30.0
REQUEST_SECONDS = 10.0

# A proxy from the environment must not be used for an engine on this machine.
_direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class FakeEngineError(Exception):
    """Raised when the fake engine did not start, or is not running."""


class FakeEngine:
    """A handle on the process of a fake engine. Leaving the `with` block always ends the process
    and waits for it."""

    program: ClassVar = ("-m", "holdfast.testing.fake_engine")
    """The arguments with which Python starts the server."""

    def __init__(
        self,
        *,
        model: str = "fake",
        mean_length: float = 24,
        replies: Sequence[str] = (),
        delay: float = 0.0,
        max_model_len: int = 1_000_000,
        faults: Sequence[Fault] = (),
        port: int = 0,
        dialect: Dialect = "vllm",
        token_delay: float = 0.0,
        tokens_per_chunk: int = 1,
        incremental_stream: bool = False,
        describes: bool = True,
        version: str = DEFAULT_VERSION,
        seeds: Seeds = "position",
        logprobs_mode: LogprobsMode = "processed",
        images: bool = False,
        thinking_budgets: bool = False,
        counts: Counts = "tokens",
        experts: Sequence[int] = (),
        base: str = "/v1",
        reasoning_model: bool = False,
    ):
        if dialect == "fireworks" and "/" not in model:
            model = f"accounts/fireworks/models/{model}"
        self._options = FakeOptions(
            model,
            mean_length,
            tuple(replies),
            delay,
            max_model_len,
            tuple(faults),
            dialect=dialect,
            token_delay=token_delay,
            tokens_per_chunk=tokens_per_chunk,
            incremental_stream=incremental_stream,
            describes=describes,
            version=version,
            seeds=seeds,
            logprobs_mode=logprobs_mode,
            images=images,
            thinking_budgets=thinking_budgets,
            counts=counts,
            experts=tuple(experts),
            base=base,
            reasoning_model=reasoning_model,
        )
        self._port = port
        self._process: subprocess.Popen[bytes] | None = None
        self._log: Path | None = None

    @property
    def model(self) -> str:
        return self._options.model

    @property
    def url(self) -> str:
        if not self._port:
            raise FakeEngineError("the fake engine has no address before its first start")
        return f"http://127.0.0.1:{self._port}"

    @property
    def pid(self) -> int:
        return self._running().pid

    # --- start and stop

    def start(self) -> Self:
        """Starts the process, and returns when it answers. All processes of one handle use the same
        port."""
        if self._process is not None:
            raise FakeEngineError("the fake engine is already running")
        handle, name = tempfile.mkstemp(prefix="holdfast-fake-engine-", suffix=".log")
        self._log = Path(name)
        with open(handle, "wb") as log:
            self._process = subprocess.Popen(  # noqa: S603  # our own module, our own arguments
                self._command(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        try:
            self._port = self._port_when_ready()
        except BaseException:
            self.kill()
            raise
        return self

    def stop(self) -> None:
        """Stops the process with SIGTERM. Requests in flight are lost, as with any engine. A second
        call does nothing."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """Kills the process with SIGKILL, so that connections break without notice."""
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        """Starts a new process on the same port. Its counters begin at 0, and its fault plan begins
        anew."""
        self.kill()
        self.start()

    def __enter__(self) -> Self:
        return self.start() if self._process is None else self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    # --- what it received

    def stats(self) -> FakeStats:
        return msgspec.json.decode(self._request("/stats"), type=FakeStats)

    def requests(self) -> list[tuple[str, int]]:
        """Returns the ids of all requests, including faulty ones, in the order of their arrival,
        each with its arrival number."""
        return msgspec.json.decode(self._request("/requests"), type=list[tuple[str, int]])

    def calls(self) -> list[SeenCall]:
        """Returns the calls that could be read, in the order of their arrival."""
        return msgspec.json.decode(self._request("/calls"), type=list[SeenCall])

    def reset(self) -> None:
        """Sets the counters to 0. The fault plan still knows which requests it has hit."""
        self._request("/reset", b"")

    def set_faults(self, *faults: Fault) -> None:
        """Replaces the fault plan by a plan of these faults, which has hit no request yet."""
        self._request("/faults", msgspec.json.encode(faults))
        self._options = msgspec.structs.replace(self._options, faults=faults)

    def start_with(self, **options: object) -> None:
        """Changes the options with which the process is started the next time."""
        self._options = msgspec.structs.replace(self._options, **options)

    def update_weights(self, version: str) -> None:
        """Makes the engine sample all further tokens with the weights `version`, even in running
        generations. A process that is started again begins with this version."""
        self._request("/weights", version.encode())
        self._options = msgspec.structs.replace(self._options, version=version)

    def release(self) -> None:
        """Continues the generations that a `FaultKind.HOLD` fault has stopped. `stats().held` is
        their number."""
        self._request("/release", b"")

    # --- inside

    def _command(self) -> list[str]:
        options = msgspec.json.encode(self._options).decode()
        return [
            *(sys.executable, *self.program),
            *("--port", str(self._port), "--parent", str(os.getpid()), "--options", options),
        ]

    def _port_when_ready(self) -> int:
        process = self._running()
        assert process.stdout is not None, "started with a pipe"
        line, deadline = b"", time.monotonic() + START_SECONDS
        while not line.endswith(b"\n"):
            left = deadline - time.monotonic()
            if not select.select([process.stdout], [], [], max(0.0, left))[0]:
                raise self._failure(f"it was not ready within {START_SECONDS:g} s")
            if not (read := os.read(process.stdout.fileno(), 4096)):
                raise self._failure(f"it ended with status {process.wait()}")
            line += read
        ready, _, url = line.decode().strip().partition(" ")
        if ready != "ready":
            raise self._failure(f"it said {line!r}")
        return int(url.rpartition(":")[2])

    def _failure(self, what: str) -> FakeEngineError:
        log = self._log.read_text(errors="replace")[-2000:] if self._log is not None else ""
        return FakeEngineError(f"the fake engine did not start: {what}\n{log}".rstrip())

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, how)
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
        if self._log is not None:
            self._log.unlink(missing_ok=True)

    def _running(self) -> "subprocess.Popen[bytes]":
        if self._process is None:
            raise FakeEngineError("the fake engine is not running")
        return self._process

    def _request(self, path: str, body: bytes | None = None) -> bytes:
        self._running()
        with _direct.open(f"{self.url}{path}", body, timeout=REQUEST_SECONDS) as answer:
            return bytes(answer.read())


def main(kind: type[FakeOptions] = FakeOptions, server: "type[FakeServer] | None" = None) -> None:
    """Runs the server until it is stopped. `server` is a class of servers that takes options of
    this `kind`; None means a plain server."""
    parser = argparse.ArgumentParser(
        prog="python -m holdfast.testing.fake_engine", description="A fake inference engine."
    )
    parser.add_argument("--port", type=int, default=0, help="0 picks a free one")
    parser.add_argument("--parent", type=int, help="end when this process is no longer the parent")
    parser.add_argument("--options", default="{}", help="JSON of `FakeOptions`")
    names = ("model", "mean-length", "delay", "max-model-len", "token-delay", "tokens-per-chunk")
    for name in (*names, "dialect", "version", "seeds", "logprobs-mode"):
        parser.add_argument(f"--{name}", help=f"overrides {name} of --options")
    parser.add_argument(
        "--reply", dest="replies", action="append", help="a template; may be given many times"
    )
    parser.add_argument("--faults", type=msgspec.json.decode, help="JSON: a list of faults")
    arguments = parser.parse_args()
    # Imported late: the handle, and code that imports it, do not need aiohttp.
    from holdfast.testing.fake_engine.process import serve
    from holdfast.testing.fake_engine.server import FakeServer

    merged = msgspec.json.decode(arguments.options, type=dict[str, object])
    for name, value in vars(arguments).items():
        if name in FakeOptions.__struct_fields__ and value is not None:
            merged[name] = value
    made = (server or FakeServer)(msgspec.convert(merged, kind, strict=False))
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(serve(made, port=arguments.port, parent=arguments.parent))
