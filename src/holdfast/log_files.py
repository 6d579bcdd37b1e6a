"""Files into which the processes of a run write what they print and log, each into its own.

They lie in a folder of the machine that the process runs on: `HOLDFAST_LOGS`, or the user's folder
for such things. Nothing in them is needed to go on: they are for people, and may be removed.
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
    """The folder of a run's logs on this machine; it may not exist.

    Two journals may have runs of one name: the folder's name holds a digest of the journal's, too.
    """
    digest = hashlib.sha256(journal_name(journal).encode()).hexdigest()[:8]
    return _root(environment) / file_name(f"{run}-{digest}")


def new_log(folder: Path, role: str) -> Path:
    """A file of its own for a process that is about to start."""
    private_folder(folder)
    started = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    host = file_name(socket.gethostname())
    path = folder / f"{role}-{started}-{host}-{os.getpid()}-{next(_numbers)}.log"
    open_log(path).close()
    return path


def open_log(path: Path, *, anew: bool = False) -> IO[bytes]:
    """Opens a log to append to it. The log, and a missing folder, are created for their owner only.
    `anew` empties the log first."""
    os.makedirs(path.parent, 0o700, exist_ok=True)
    flags = os.O_WRONLY | os.O_APPEND | (os.O_TRUNC if anew else 0)
    return open(open_private(path, flags), "ab", buffering=0)


def note_elsewhere(folder: Path, *, host: str, path: str, role: str) -> None:
    """Remembers a log of another machine, so that `holdfast logs` can name it."""
    private_folder(folder)
    with open_log(folder / INDEX) as file:
        file.write(json.dumps({"host": host, "path": path, "role": role}).encode() + b"\n")


def read_index(folder: Path) -> list[dict[str, str]]:
    """The logs of other machines; a line that a kill has cut is left out."""
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
    """The last lines of a file, and of those at most the last `most` bytes."""
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
    """One name for one journal: the same from every folder, and with every password."""
    return public_address(journal) if "://" in journal else os.path.abspath(journal)
