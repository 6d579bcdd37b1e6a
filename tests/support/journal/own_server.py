"""A PostgreSQL server of one test, which that test may kill, restart, fill or take back in time."""

import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from support.journal import postgres_guard
from support.journal.postgres_server import ROLE, binaries, new_folder


class OwnServer:
    """Started, with role `trainer` and database `runs` for it."""

    def __init__(self, folder: Path, **settings: str):
        result = binaries()
        assert result is not None
        self.folder = folder
        self._binaries = result
        self._settings = settings
        self.data = postgres_guard.initialize(folder, result)
        self.process: subprocess.Popen[bytes] | None = None
        self.start()
        self.psql("postgres", f"CREATE ROLE {ROLE} LOGIN", "CREATE DATABASE runs")
        self.psql("runs", f"CREATE SCHEMA holdfast AUTHORIZATION {ROLE}")

    @property
    def url(self) -> str:
        return f"postgresql://{ROLE}@/runs?host={quote(str(self.folder), safe='')}"

    def start(self) -> None:
        self.process = postgres_guard.start(self.data, self._binaries, **self._settings)
        postgres_guard.wait_until_ready(self.data, self.process)

    def kill(self, number: signal.Signals = signal.SIGQUIT) -> None:
        """SIGQUIT: everything stops at once, without a checkpoint. SIGKILL: the postmaster alone,
        and its children when they notice."""
        assert self.process is not None
        self.process.send_signal(number)
        self.process.wait(60)

    def restart(self, number: signal.Signals = signal.SIGQUIT) -> None:
        self.kill(number)
        self.start()

    def copy(self, target: Path) -> None:
        """The data as it is, of a server that is stopped."""
        shutil.rmtree(target, ignore_errors=True)
        subprocess.run(["cp", "-a", str(self.data), str(target)], check=True)

    def put_back(self, source: Path) -> None:
        shutil.rmtree(self.data)
        subprocess.run(["cp", "-a", str(source), str(self.data)], check=True)

    def psql(self, database: str, *statements: str) -> str:
        arguments = [str(self._binaries / "psql"), "-h", str(self.folder), "-U", "postgres", "-qAt"]
        for statement in statements:
            arguments += ["-c", statement]
        done = subprocess.run([*arguments, database], check=True, capture_output=True, text=True)
        return done.stdout

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGQUIT)
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait(20)


@contextmanager
def own_server(**settings: str) -> Iterator[OwnServer]:
    folder = new_folder()
    server: OwnServer | None = None
    try:
        server = OwnServer(folder, **settings)
        yield server
    finally:
        if server is not None:
            server.stop()
        shutil.rmtree(folder, ignore_errors=True)


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])
