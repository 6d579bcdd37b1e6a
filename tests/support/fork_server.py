"""`python -m …` of holdfast, pytest and fake engines without imports: forks of a process that has
them.

Most of what such a process costs is imports, the same ones each time. `Popen` is subprocess's own,
with pipes, signals, sessions and exit statuses; the process is a fork of a server which this
process starts when it first needs it, and which ends with it. What is special is started as ever:
other programs, other variables of Python's own, file descriptors to be inherited.

`TrainingPopen` does it for `holdfast train`, its other ranks and embedded engines, with torch and
all that belongs to it, computing with one thread.

Run as a program it is the server.
"""

import atexit
import gc
import inspect
import io
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
from importlib import import_module
from pathlib import Path
from typing import Any

MODULES = (
    *("holdfast", "holdfast.testing.fake_engine", "holdfast.training.follower", "pytest"),
    "support.weights.fake_engine.engine",
)
"""What `python -m` may name."""

IMPORTED = (
    *("holdfast.cli.main", "holdfast.cli.commands.run", "holdfast.cli.commands.results.export"),
    *("holdfast.cli.options.runs", "holdfast.cli.options.gateway", "holdfast.cli.options.train"),
    *("holdfast.engine.export.rows", "holdfast.weights.carrier"),
    *(
        "holdfast.cli.commands.runs.show",
        "holdfast.cli.commands.journal",
        "holdfast.cli.setup.connect",
    ),
    *(
        "holdfast.cli.setup.user_code",
        "holdfast.policy.client.replicas",
        "holdfast.engine.running.engine",
    ),
    *("holdfast.testing.fake_engine.process", "holdfast.gateway.agents.gateway_processor"),
    # pyarrow imports pandas when it makes its first table.
    *("sqlite3", "aiohttp", "aiohttp.web", "pandas", "pyarrow.parquet", "pytest"),
    *("holdfast.evaluation.decorator", "holdfast.cli.commands.results.export_parquet"),
    *("holdfast.evaluation.rows.row", "holdfast.evaluation.running.experiment"),
)
TRAINING = (
    *("torch", "transformers", "transformers.models.llama.modeling_llama", "peft", "tokenizers"),
    "transformers.models.qwen2.modeling_qwen2",
    *("holdfast.cli.commands.train", "holdfast.training.run.train", "holdfast.embedded.serving"),
    *("holdfast.embedded.model.load", "holdfast.embedded.scheduler.engine"),
    *("holdfast.embedded.http.server", "holdfast.embedded.child_process"),
    *("holdfast.cli.commands.pipeline", "holdfast.pipeline.parts", "holdfast.pipeline.engine"),
    *("holdfast.policy.rendering.select", "renderers", "rich.console"),
    *("holdfast.training.follower", "torch.distributed.tensor"),
)
ENCODING = "PYTHONIOENCODING"
STARTS = [[sys.executable, "-m", module] for module in MODULES]
PIPES = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
_EXECUTE = inspect.signature(subprocess.Popen._execute_child)


def _own(env: "dict[str, str] | os._Environ[str]") -> dict[str, str]:
    """What Python itself reads of the environment when it starts."""
    return {k: v for k, v in env.items() if k.startswith("PYTHON") and k != ENCODING}


OWN = _own(os.environ)
"""The server's. A test may change its own."""


# --- the client


class _Server:
    """A server of this process."""

    def __init__(self, imported: tuple[str, ...] = (), **env: str) -> None:
        """It imports these beside the usual ones; `env` is what they read when they are."""
        self._imported = imported
        self._env = env
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0

    def ask(self, order: dict[str, Any], fds: list[int]) -> int:
        with self._lock:
            if self._socket is None or self._owner != os.getpid():
                self._start()
            assert self._socket is not None
            return _exchange(self._socket, order, fds)

    def close(self) -> None:
        if self._socket is not None and self._process is not None:
            self._socket.close()
            self._process.wait()
        self._socket = self._process = None

    def _start(self) -> None:
        self._owner = os.getpid()
        self._socket, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno()), *self._imported],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                env={k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
                | OWN
                | self._env,
            )

    def split(self) -> dict[str, Any] | None:
        """In a fork, for what it starts itself: a fork of it, which has no thread yet, is its
        server. None, or, in each child of that server, what it is to do."""
        self._owner = os.getpid()
        ours, theirs = socket.socketpair()
        if os.fork():
            theirs.close()
            self._socket = ours
            return None
        ours.close()
        return _serve(theirs)


_SERVER = _Server()
_TRAINING = _Server(TRAINING, OMP_NUM_THREADS="1")


def close() -> None:
    _SERVER.close()
    _TRAINING.close()


def _exchange(connection: socket.socket, order: dict[str, Any], fds: list[int]) -> int:
    body = json.dumps(order).encode()
    head = len(body).to_bytes(4, "big") + len(fds).to_bytes(1, "big")
    if fds:
        socket.send_fds(connection, [head], fds)
    else:
        connection.sendall(head)
    connection.sendall(body)
    answer = b""
    while len(answer) < 8:
        got = connection.recv(8 - len(answer))
        if not got:
            raise RuntimeError("the fork server has ended")
        answer += got
    return int.from_bytes(answer, "big", signed=True)


class Popen(subprocess.Popen):  # type: ignore[type-arg]
    """As subprocess's. What can be a fork is one."""

    _server = _SERVER
    _pidfd: int | None = None

    def _execute_child(self, *values: Any) -> None:
        bound = _EXECUTE.bind(self, *values).arguments
        arguments = [] if isinstance(bound["args"], str) else [os.fspath(w) for w in bound["args"]]
        env = dict(os.environ if bound["env"] is None else bound["env"])
        special = bound["preexec_fn"] is not None or bound["pass_fds"]
        if arguments[:3] not in STARTS or special or _own(env) != OWN:
            return super()._execute_child(*values)
        pipes = [bound[name] for name in PIPES]
        theirs = (bound["p2cread"], bound["c2pwrite"], bound["errwrite"])
        fds = [number if fd == -1 else fd for number, fd in enumerate(theirs)]
        order = {
            "module": arguments[2],
            "words": arguments[3:],
            "cwd": os.path.abspath(os.fspath(bound["cwd"] or os.getcwd())),
            "env": env,
            "session": bool(bound["start_new_session"]),
            "parent": os.getpid(),
        }
        self.pid = self._server.ask(order, fds)
        self._pidfd = os.pidfd_open(self.pid)
        self._child_created = True
        self._close_pipe_fds(*pipes)
        return None

    def _internal_poll(self, *deadstate: Any, **more: Any) -> int | None:
        if self._pidfd is not None:
            more["_waitpid"] = lambda _, flags: self._try_wait(flags)
        return super()._internal_poll(*deadstate, **more)

    def _try_wait(self, wait_flags: int) -> tuple[int, int]:
        if self._pidfd is None:
            return super()._try_wait(wait_flags)
        seconds = 0 if wait_flags & os.WNOHANG else None
        if not select.select([self._pidfd], [], [], seconds)[0]:
            return 0, 0
        status = self._server.ask({"ended": self.pid}, [])
        os.close(self._pidfd)
        return self.pid, status


class TrainingPopen(Popen):
    """The same, with all that a training needs."""

    _server = _TRAINING


def run(
    arguments: list[str], *, timeout: float, **options: Any
) -> "subprocess.CompletedProcess[Any]":
    """As subprocess's."""
    with Popen(arguments, **options) as process:
        try:
            out, err = process.communicate(timeout=timeout)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(arguments, process.returncode, out, err)


# --- the server


def _serve(connection: socket.socket) -> dict[str, Any]:
    """Returns, in each child, what it is to do."""
    while True:
        order, fds = _read(connection)
        if "ended" in order:
            _, answer = os.waitpid(order["ended"], 0)
        else:
            answer = os.fork()
            if not answer:
                connection.close()
                _become(order, fds)
                return order
            for fd in fds:
                os.close(fd)
        connection.sendall(answer.to_bytes(8, "big", signed=True))


def _read(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    head, fds, _, _ = socket.recv_fds(connection, 5, 3)
    while len(head) < 5:
        got = connection.recv(5 - len(head))
        if not got:
            os._exit(0)  # Whoever started it is gone.
        head += got
    size, body = int.from_bytes(head[:4], "big"), b""
    while len(body) < size:
        body += connection.recv(size - len(body))
    return json.loads(body), fds


def _become(order: dict[str, Any], fds: list[int]) -> None:
    """What a process that was just started has: its session, streams, folder and variables."""
    if order["session"]:
        os.setsid()
    for number, fd in enumerate(fds):
        os.dup2(fd, number)
    for fd in fds:
        if fd > 2:
            os.close(fd)
    os.chdir(str(order["cwd"]))
    os.environ.clear()
    os.environ.update(order["env"])
    arguments = [str(word) for word in order["words"]]
    if "--parent" in arguments and arguments[arguments.index("--parent") + 1] == str(
        order["parent"]
    ):
        arguments[arguments.index("--parent") + 1] = str(os.getppid())
    sys.argv = [str(order["module"]), *arguments]
    Path("/proc/self/comm").write_text(arguments[0] if arguments else str(order["module"]))
    sys.path[0] = str(order["cwd"])
    encoding = os.environ.get(ENCODING) or None
    sys.stdin = sys.__stdin__ = io.TextIOWrapper(
        io.BufferedReader(io.FileIO(0, closefd=False)), encoding
    )
    sys.stdout = sys.__stdout__ = _writer(1, encoding)
    sys.stderr = sys.__stderr__ = _writer(2, encoding, "backslashreplace")


def _writer(fd: int, encoding: str | None, errors: str = "strict") -> io.TextIOWrapper:
    raw = io.BufferedWriter(io.FileIO(fd, "wb", closefd=False))
    line_buffering = fd == 2 or os.isatty(fd)
    return io.TextIOWrapper(raw, encoding, errors, line_buffering=line_buffering)


def main() -> None:
    connection = socket.socket(fileno=int(sys.argv[1]))
    os.set_inheritable(connection.fileno(), False)
    for name in (*IMPORTED, *sys.argv[2:]):
        import_module(name)
    gc.collect()
    gc.freeze()
    order = _serve(connection)
    if order["words"][:1] == ["train"]:
        order = _TRAINING.split() or order
    if order["words"][:1] == ["train"]:
        # Its engine, its parts and its other ranks; whatever else it starts is started as ever.
        subprocess.Popen = TrainingPopen  # type: ignore[misc]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if str(order["module"]).startswith("support."):
        sys.path.append(str(Path(__file__).parents[1]))
    try:
        runpy.run_module(str(order["module"]), run_name="__main__", alter_sys=True)
    except SystemExit as end:
        if end.code is not None and not isinstance(end.code, int):
            raise
        _end(end.code or 0)
    _end(0)


def _end(status: int) -> None:
    """As Python ends, but for the modules: to take those apart costs more than most commands."""
    threading._shutdown()
    atexit._run_exitfuncs()
    gc.collect()  # What is garbage may have something to say.
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except (OSError, ValueError):
        return  # Python itself says what that means.
    os._exit(status & 0xFF)


if __name__ == "__main__":
    main()
