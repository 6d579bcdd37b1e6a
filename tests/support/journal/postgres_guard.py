"""Runs a PostgreSQL server for as long as a process lives: `guard.py FOLDER BIN PID FILE`.

The server is a child of this program, which ends it and removes the folder when the process with
that number is gone, however that came about, and with the folder the file that names it.
"""

import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

SETTINGS = {
    "listen_addresses": "",
    "max_connections": "300",
    "shared_buffers": "64MB",
    "wal_level": "minimal",
    "max_wal_senders": "0",
    "max_wal_size": "256MB",
    "logging_collector": "off",
    "jit": "off",
}
HBA = "local all guarded scram-sha-256\nlocal all all trust\nhost all all 127.0.0.1/32 trust\n"


def user() -> dict[str, object]:
    """PostgreSQL refuses to run as root: then it runs as nobody."""
    return {"user": "nobody", "group": "nogroup", "extra_groups": []} if os.geteuid() == 0 else {}


def initialize(folder: Path, binaries: Path) -> Path:
    data = folder / "data"
    if os.geteuid() == 0:
        shutil.chown(folder, "nobody", "nogroup")
    subprocess.run(
        [binaries / "initdb", "-D", data, "-U", "postgres", "--auth=trust", "--no-sync",
         "--encoding=UTF8", "--no-locale", "--no-instructions"],
        check=True, stdout=subprocess.DEVNULL, env={"PATH": os.environ["PATH"], "LC_ALL": "C"},
        cwd=folder, **user(),  # type: ignore[call-overload]
    )  # fmt: skip
    (data / "pg_hba.conf").write_text(HBA)
    return data


def start(data: Path, binaries: Path, *, port: int = 0, **settings: str) -> subprocess.Popen[bytes]:
    """The postmaster; with a port, also on 127.0.0.1."""
    chosen = SETTINGS | {"unix_socket_directories": str(data.parent)} | settings
    if port:
        chosen |= {"listen_addresses": "127.0.0.1", "port": str(port)}
    arguments = [str(binaries / "postgres"), "-D", str(data)]
    for name, value in chosen.items():
        arguments += ["-c", f"{name}={value}"]
    with (data.parent / "log").open("ab") as log:
        return subprocess.Popen(
            arguments, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True,
            cwd=data, env={"PATH": os.environ["PATH"], "LC_ALL": "C"},
            **user(),  # type: ignore[call-overload]
        )  # fmt: skip


def wait_until_ready(data: Path, server: subprocess.Popen[bytes], *, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    state = data / "postmaster.pid"
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError, IndexError):
            lines = state.read_text().splitlines()
            if int(lines[0]) == server.pid and lines[7].strip() == "ready":
                return
        if server.poll() is not None:
            break
        time.sleep(0.02)
    raise RuntimeError(f"PostgreSQL did not start: {(data.parent / 'log').read_text()[-2000:]}")


def main() -> None:
    folder, binaries, pid = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    server: subprocess.Popen[bytes] | None = None
    try:
        watched = os.pidfd_open(pid)
        data = initialize(folder, binaries)
        server = start(data, binaries)
        wait_until_ready(data, server)
        (folder / "ready").touch()
        while not select.select([watched], [], [], 0.5)[0]:
            if server.poll() is not None:
                break
    finally:
        if server is not None and server.poll() is None:
            server.send_signal(signal.SIGQUIT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                server.wait(20)
            server.kill()
        shutil.rmtree(folder, ignore_errors=True)
        for name in (sys.argv[4], f"{sys.argv[4]}.lock"):
            Path(name).unlink(missing_ok=True)


if __name__ == "__main__":
    main()
