"""A session holds the path of the journal, the options and the embedded engines of one process.

Policies and the open journal are not part of the session. They belong to one evaluation and its
event loop.
"""

import secrets
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from holdfast.beside import trace_beside
from holdfast.engine.connect import EmbeddedEngines
from holdfast.engine.report import escape_lines
from holdfast.evaluation.definition.flags import JOURNAL
from holdfast.evaluation.definition.options import Options
from holdfast.journal import check_address, is_server, take_password
from holdfast.journal.types import MEMORY
from holdfast.records.errors import UsageError


def _to_stderr(line: str) -> None:
    print(f"holdfast: {escape_lines(line)}", file=sys.stderr, flush=True)  # noqa: T201


class EvaluationSession:
    """The session of one process. Close it when all evaluations are done."""

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
        self._beside = ExitStack()
        self._follow: Callable[[str], None] = lambda _: None
        self._followed: set[str] = set()

    def trace(self, url: str) -> None:
        """Sends the spans of the session's runs to this collector until the session is closed."""
        tracing = trace_beside(self.journal(), url, option="--holdfast-otel")
        self._follow = self._beside.enter_context(tracing)

    def follow(self, run: str) -> None:
        """Adds a run to the runs whose spans are sent."""
        if run not in self._followed:
            self._followed.add(run)
            self._follow(run)

    def journal(self) -> str:
        """Returns the journal's address, after creating its folder. A password in a URL is removed,
        because the address is shown in reports and summaries."""
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
        journal = self._root / JOURNAL
        with _writable(journal.parent):
            journal.parent.mkdir(exist_ok=True)
            _ignore_in_git(journal.parent)
        return str(journal)

    def close(self) -> None:
        """Sends the last spans, and ends the embedded engines. A second call does nothing."""
        self._beside.close()
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
    """Makes git ignore the journal's folder. Several workers may do this at once."""
    own = folder / ".gitignore"
    if not own.exists():
        beside = folder / f".gitignore.{secrets.token_hex(8)}"
        beside.write_text("# Made by holdfast.\n*\n")
        beside.replace(own)
