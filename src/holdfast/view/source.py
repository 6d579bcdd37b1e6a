"""The journal that is shown. It is opened for reading when a page first needs it, and opened again
if its file was replaced."""

import os
from contextlib import suppress

from holdfast.journal import is_server, open_journal, opened_journal, shown_address
from holdfast.journal.sql.find_run import run_named
from holdfast.journal.sql.journal import Journal
from holdfast.records.encoding.redaction import redact
from holdfast.records.errors import JournalError
from holdfast.records.run import Run


class ShownJournal:
    """The journal at an address. Pages read it through `journal`. Only `tag` changes the
    journal."""

    def __init__(self, where: str):
        self.where = where
        self._journal: Journal | None = None
        self._file: tuple[int, int] | None = None

    @property
    def name(self) -> str:
        """Returns the address as it is shown to people, without secrets."""
        return redact(shown_address(self.where))

    async def journal(self) -> Journal:
        """Returns the open journal. Raises `JournalError` if the file was deleted."""
        file = self._identity()
        if self._journal is not None and file != self._file:
            await self.close()
        if self._journal is None:
            self._journal = open_journal(self.where, read_only=True)
            self._file = file
        return self._journal

    def _identity(self) -> tuple[int, int] | None:
        """Returns two numbers that identify the journal's file, so that a replaced file is noticed.
        Returns None for a journal on a server."""
        if is_server(self.where):
            return None
        try:
            status = os.stat(self.where)
        except OSError as error:
            raise JournalError(
                f"there is no journal at {self.name} any more: it was deleted or moved"
            ) from error
        return status.st_dev, status.st_ino

    async def run(self, name: str) -> Run:
        """Returns the run with that name. Raises `UsageError` if there is none."""
        return await run_named(await self.journal(), name)

    async def tag(self, name: str, *, add: str, remove: str) -> Run:
        """Adds the tag `add` to a run and removes the tag `remove`; "" means no tag. The journal is
        open for writing only during this call."""
        async with opened_journal(self.where) as journal:
            run = await run_named(journal, name)
            kept = [tag for tag in run.spec.tags if tag != remove]
            return await journal.annotate_run(run, tags=[*kept, *filter(None, [add])])

    async def close(self) -> None:
        journal, self._journal = self._journal, None
        if journal is not None:
            with suppress(JournalError):  # Nothing is left to write.
                await journal.close()
