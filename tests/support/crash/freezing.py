"""A process that is stopped in its tracks, as a laptop that is closed stops it."""

import contextlib
import signal
import sqlite3
import subprocess
import time
from pathlib import Path


def freeze(process: "subprocess.Popen[str]", journal: Path) -> None:
    """Between two of its commits and checkpoints: frozen within one, it would hold the file's lock,
    and whoever comes after could only wait for it."""
    while True:
        process.send_signal(signal.SIGSTOP)
        while not _is_stopped(process.pid):
            time.sleep(0.001)
        if _is_free(journal):
            return
        process.send_signal(signal.SIGCONT)
        time.sleep(0.01)


def _is_free(journal: Path) -> bool:
    with contextlib.closing(sqlite3.connect(journal, timeout=0.2)) as connection:
        try:
            connection.execute("BEGIN IMMEDIATE")
            connection.rollback()
            (busy, _, _) = connection.execute("PRAGMA wal_checkpoint").fetchone()
        except sqlite3.OperationalError:
            return False
        return not busy


def _is_stopped(pid: int) -> bool:
    """A signal takes its time; until then a thread may still begin a commit."""
    threads = Path(f"/proc/{pid}/task").iterdir()
    try:
        states = [(thread / "stat").read_text().rpartition(")")[2].split()[0] for thread in threads]
    except (FileNotFoundError, ProcessLookupError):
        return False  # A thread has just ended.
    return set(states) == {"T"}
