"""A journal whose writer was killed, as its files, to be damaged in many ways.

Run as a program it is that writer: it commits, says what it has, and kills itself.
"""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

from msgspec import Struct

sys.path.insert(0, str(Path(__file__).parents[2]))

from holdfast.journal.sqlite.journal import SqliteJournal
from support.records import ready, value

HEADER, FRAME, PAGE = 32, 24, 16384
PARTS = ("", "-wal", "-witness")


class Files(Struct, frozen=True):
    """A journal at rest."""

    main: bytes
    log: bytes
    witness: bytes

    def put(self, path: Path, **changed: bytes | None) -> None:
        """At `path`; None: that one is not there."""
        parts: dict[str, bytes | None] = {
            "main": self.main,
            "log": self.log,
            "witness": self.witness,
        }
        for name, suffix in zip(parts, PARTS, strict=True):
            content = (parts | changed)[name]
            file = path.with_name(path.name + suffix)
            file.unlink(missing_ok=True)
            if content is not None:
                file.write_bytes(content)
        path.with_name(f"{path.name}-shm").unlink(missing_ok=True)

    @property
    def frames(self) -> int:
        return (len(self.log) - HEADER) // (FRAME + PAGE)

    def is_commit(self, frame: int) -> bool:
        at = offset(frame)
        return self.log[at + 4 : at + 8] != bytes(4)

    @property
    def commits(self) -> list[int]:
        return [frame for frame in range(self.frames) if self.is_commit(frame)]


def offset(frame: int) -> int:
    return HEADER + frame * (FRAME + PAGE)


def taken(path: Path) -> Files:
    main, log, witness = (path.with_name(path.name + part) for part in PARTS)
    return Files(main.read_bytes(), log.read_bytes(), witness.read_bytes())


def killed_writer(path: Path, *, appends: int = 12) -> Files:
    """What a writer leaves that was killed after so many appends."""
    command = [sys.executable, __file__, str(path), str(appends)]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    return taken(path)


async def _write(path: Path, appends: int) -> None:
    journal = SqliteJournal(path)
    _, _, claims = await ready(journal, "a", samples=1)
    for number in range(appends):
        await journal.append(claims[0].open[0], [value(number, size=number % 4 * 9_000)])
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    asyncio.run(_write(Path(sys.argv[1]), int(sys.argv[2])))
