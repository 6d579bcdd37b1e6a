"""Session: the path of the journal, the options and the embedded engines of one process.

Policies and the open journal belong to one evaluation and its event loop.
"""

import secrets
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from holdfast.engine.connect import EmbeddedEngines
from holdfast.engine.report import escape_lines
from holdfast.evaluation.definition.options import Options
from holdfast.journal import check_address, is_server, take_password
from holdfast.journal.journal import MEMORY
from holdfast.records.errors import UsageError

FOLDER, FILE = ".holdfast", "evaluations.db"


def _to_stderr(line: str) -> None:
    print(f"holdfast: {escape_lines(line)}", file=sys.stderr, flush=True)  # noqa: T201


class EvaluationSession:
    """Close it when all evaluations are done."""

    def __init__(
        self,
        options: Options | None = None,
        *,
        root: Path | None = None,
        notify: Callable[[str], None] = _to_stderr,
    ):
        self.options = options or Options()
        self.notify = notify
        self._root = root or Path.cwd()
        self.engines = EmbeddedEngines(notify)

    def journal(self) -> str:
        """Where everything is kept; its folder exists when this returns. A password in a URL is
        taken out: the address is in reports and summaries."""
        if self.options.journal is not None:
            place = self.options.journal
            check_address(place)
            if is_server(place):
                return take_password(place)
            if place != MEMORY and Path(place).is_dir():
                raise UsageError(f"--holdfast-journal {place} is a folder; name a file")
            if place != MEMORY:
                with _writable(Path(place).absolute().parent):
                    Path(place).absolute().parent.mkdir(parents=True, exist_ok=True)
            return place
        folder = self._root / FOLDER
        with _writable(folder):
            folder.mkdir(exist_ok=True)
            _ignore_in_git(folder)
        return str(folder / FILE)

    def close(self) -> None:
        """Ends the embedded engines. Does nothing a second time."""
        self.engines.close()


@contextmanager
def _writable(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UsageError(
            f"the journal's folder {folder} cannot be written to ({error.strerror}); name another "
            "place with --holdfast-journal FILE"
        ) from error


def _ignore_in_git(folder: Path) -> None:
    """A journal is no part of a repository. Several workers may come here at once."""
    own = folder / ".gitignore"
    if not own.exists():
        beside = folder / f".gitignore.{secrets.token_hex(8)}"
        beside.write_text("# Made by holdfast.\n*\n")
        beside.replace(own)
