"""Session: what the evaluations of one process share.

The journal's place, the options, and the embedded engine, which is started when it is first needed
and once only. Policies and the open journal belong to one evaluation and its event loop.
"""

import asyncio
import secrets
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.evaluation.definition.options import Options
from holdfast.journal import MEMORY, check_address
from holdfast.records.errors import HoldfastError, UsageError

if TYPE_CHECKING:
    from holdfast.embedded.child_process import EmbeddedEngine

FOLDER, FILE = ".holdfast", "evaluations.db"
WATCH_SECONDS = 0.5


def _to_stderr(line: str) -> None:
    print(f"holdfast: {line}", file=sys.stderr, flush=True)  # noqa: T201 - people read it


class EvaluationSession:
    """Close it when all evaluations are done."""

    def __init__(
        self,
        options: Options | None = None,
        *,
        root: Path | None = None,
        tell: Callable[[str], None] = _to_stderr,
    ):
        self.options = options or Options()
        self.tell = tell
        self._root = root or Path.cwd()
        self._engines: dict[str | None, EmbeddedEngine] = {}

    def journal(self) -> str:
        """Where everything is kept; its folder exists when this returns."""
        if self.options.journal is not None:
            place = self.options.journal
            check_address(place)
            if place != MEMORY and Path(place).is_dir():
                raise UsageError(f"--holdfast-journal {place} is a folder; name a file")
            if place != MEMORY:
                with _made(Path(place).absolute().parent):
                    Path(place).absolute().parent.mkdir(parents=True, exist_ok=True)
            return place
        folder = self._root / FOLDER
        with _made(folder):
            folder.mkdir(exist_ok=True)
            _ignored_by_git(folder)
        return str(folder / FILE)

    @asynccontextmanager
    async def embedded(self, folder: str | None) -> "AsyncIterator[EmbeddedEngine]":
        """The embedded engine, kept alive while it is used and left running for the next one."""
        from holdfast.embedded.child_process import EmbeddedEngine

        if folder not in self._engines:
            self.tell("no policy is named: starting the embedded engine")
            engine = EmbeddedEngine(None if folder is None else Path(folder), report=self.tell)
            await engine.start_in_thread()
            self._engines[folder] = engine
        engine = self._engines[folder]
        keeper = asyncio.create_task(self._keep_alive(engine), name="keep the engine alive")
        try:
            yield engine
        finally:
            keeper.cancel()
            await asyncio.gather(keeper, return_exceptions=True)

    async def _keep_alive(self, engine: "EmbeddedEngine") -> None:
        """A dead engine is an outage like any other: calls wait until it is back, and go on."""
        while True:
            if not engine.running:
                try:
                    await engine.start_in_thread()
                except HoldfastError as error:
                    self.tell(f"the embedded engine died, and cannot be started again yet: {error}")
            await asyncio.sleep(WATCH_SECONDS)

    def close(self) -> None:
        """Ends what was started. Does nothing a second time."""
        engines, self._engines = list(self._engines.values()), {}
        for engine in engines:
            engine.stop()


@contextmanager
def _made(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UsageError(
            f"the journal's folder {folder} cannot be written to ({error.strerror}); name another "
            "place with --holdfast-journal FILE"
        ) from error


def _ignored_by_git(folder: Path) -> None:
    """A journal is no part of a repository. Several workers may come here at once."""
    own = folder / ".gitignore"
    if not own.exists():
        beside = folder / f".gitignore.{secrets.token_hex(8)}"
        beside.write_text("# Made by holdfast.\n*\n")
        beside.replace(own)
