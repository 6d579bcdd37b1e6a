"""What this machine knows of the commits that a journal on a server has acknowledged.

A command that is started after a failover has no memory of its own. So each writer notes the number
of its last acknowledged batch, under its own name, in a small file of this user and machine (see
`files.witness`), one for each journal, by the journal's identity. The server keeps the same number
in the writer's row, which goes with the commits that it counts: a row that is behind its note, or
gone, means that the server has lost commits.

The folder is `$XDG_STATE_HOME/holdfast/journals`, or the same in `~/.local/state`. Where it cannot
be written, nothing is noted, and only what lives knows.
"""

import logging
import os
import time
from pathlib import Path

from holdfast.journal.files.witness import Witness, notes
from holdfast.private_files import private_folder
from holdfast.records.errors import UsageError

KEPT_DAYS = 90
"""A writer's row on the server outlives its last batch by so much."""
_TRUSTED_SECONDS = KEPT_DAYS / 2 * 86400
"""How old a note may be: nobody has deleted the row that it is held against."""
_log = logging.getLogger("holdfast.journal")


def open_witness(identity: str, writer: str) -> Witness | None:
    """A writer's side; None where nothing can be noted."""
    path = _path(identity)
    try:
        private_folder(path.parent)
        return Witness(path, int(writer, 16))
    except (OSError, RuntimeError, UsageError) as error:  # RuntimeError: this user has no home.
        _log.debug("no witness of commits is kept: %s", error)
        return None


def acknowledged_commits(identity: str) -> dict[str, int]:
    """By writers of this machine: the last batch that the server has confirmed to each."""
    try:
        noted = notes(_path(identity))
    except RuntimeError:  # As above.
        return {}
    oldest = time.time() - _TRUSTED_SECONDS
    return {f"{name:016x}": note.number for name, note in noted.items() if note.time > oldest}


def _path(identity: str) -> Path:
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "holdfast" / "journals" / identity
