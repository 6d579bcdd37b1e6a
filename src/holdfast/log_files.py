"""Log files of a run's processes, one file per process.

The files lie in a folder of the machine that the process runs on: `HOLDFAST_LOGS`, or the user's
state folder. People read them; a run does not need them to go on, so they may be removed.
"""

import contextlib
import hashlib
import itertools
import json
import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO

from holdfast.private_files import open_private, private_folder
from holdfast.records.encoding.file_name import file_name
from holdfast.records.encoding.redaction import public_address

LOGS = "HOLDFAST_LOGS"
"""The environment variable that names the folder of all logs."""
INDEX = "elsewhere.jsonl"
_numbers = itertools.count(1)


def logs_of(run: str, journal: str, *, environment: Mapping[str, str] = os.environ) -> Path:
    """Returns the folder of a run's logs on this machine. The folder may not exist.

    Two journals may have runs with the same name, so the folder's name contains a digest of the
    journal's name.
    """
    digest = hashlib.sha256(journal_name(journal).encode()).hexdigest()[:8]
    return _root(environment) / file_name(f"{run}-{digest}")


def new_log(folder: Path, role: str) -> Path:
    """Creates a log file for a process that is about to start, and returns its path."""
    private_folder(folder)
    started = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    host = file_name(socket.gethostname())
    path = folder / f"{role}-{started}-{host}-{os.getpid()}-{next(_numbers)}.log"
    open_log(path).close()
    return path


def open_log(path: Path, *, anew: bool = False) -> IO[bytes]:
    """Opens a log to append to it. Creates the log, and a missing folder, for their owner only.
    With `anew`, empties the log first."""
    os.makedirs(path.parent, 0o700, exist_ok=True)
    flags = os.O_WRONLY | os.O_APPEND | (os.O_TRUNC if anew else 0)
    return open(open_private(path, flags), "ab", buffering=0)


def note_elsewhere(folder: Path, *, host: str, path: str, role: str) -> None:
    """Adds a log file of another machine to the folder's index, so that `holdfast logs` can name
    the file."""
    private_folder(folder)
    with open_log(folder / INDEX) as file:
        file.write(json.dumps({"host": host, "path": path, "role": role}).encode() + b"\n")


def read_index(folder: Path) -> list[dict[str, str]]:
    """Returns the logs of other machines. Leaves out a line that a kill has cut."""
    try:
        lines = (folder / INDEX).read_text().splitlines()
    except FileNotFoundError:
        return []
    entries = []
    for line in lines:
        with contextlib.suppress(ValueError):
            entries.append(json.loads(line))
    return entries


def tail(path: Path, lines: int, *, most: int = 1_000_000) -> str:
    """Returns the last `lines` lines of a file, from at most its last `most` bytes."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - most))
        text = file.read().decode("utf-8", "replace")
    return "\n".join(text.splitlines()[-lines:]) if lines else ""


def _root(environment: Mapping[str, str]) -> Path:
    if named := environment.get(LOGS):
        return Path(named)
    state = environment.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "holdfast" / "logs"


def journal_name(journal: str) -> str:
    """Returns the absolute path of a journal, or its URL without secrets. So a journal has the same
    name in every working folder and with every password."""
    return public_address(journal) if "://" in journal else os.path.abspath(journal)
