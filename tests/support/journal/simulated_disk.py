"""A disk that forgets: every write and sync is written down, and power may fail between any two.

`SimulatedDisk` is a SQLite VFS (through apsw) that keeps files in memory and a history of what was
done to them. `after_power_loss` builds what a real disk may hold if the power failed at a point of
that history: everything that was synced, and of what was not, any subset, sectors torn.
`connect` gives the journal a connection on that disk that speaks the `sqlite3` module's language.
"""

import random
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import apsw
from msgspec import Struct

from holdfast.journal.files.witness import SLOT_BYTES, SLOTS, Witness

SECTOR = 512
POWERSAFE_OVERWRITE = 0x1000


class Write(Struct, frozen=True):
    file: str
    offset: int
    data: bytes


class Truncate(Struct, frozen=True):
    file: str
    size: int


class Sync(Struct, frozen=True):
    file: str


class Delete(Struct, frozen=True):
    file: str


class Note(Struct, frozen=True):
    """Something that the test did at this moment."""

    what: Any


TEMPORARY = "temporary-"
Event = Write | Truncate | Sync | Delete | Note


class SimulatedDisk(apsw.VFS):
    def __init__(self, name: str, files: dict[str, bytes] | None = None):
        """`files`: what is on it, synced, at the beginning."""
        super().__init__(name, "")
        self.name = name
        self.files: dict[str, bytearray] = {}
        self.events: list[Event] = []
        for path, content in (files or {}).items():
            self.files[path] = bytearray(content)
            self.events += [Write(path, 0, content), Sync(path)]
        self.connections = 0

    def note(self, what: object) -> None:
        self.events.append(Note(what))

    def xOpen(self, name: Any, flags: list[int]) -> "_File":  # noqa: N802
        if name is None:  # A temporary file: gone with the power, and never looked at again.
            path = f"{TEMPORARY}{len(self.files)}"
        else:
            path = name.filename() if isinstance(name, apsw.URIFilename) else str(name)
        flags[1] = flags[0]
        self.files.setdefault(path, bytearray())
        return _File(self, path)

    def xAccess(self, path: str, flags: int) -> bool:  # noqa: N802
        return path in self.files

    def xDelete(self, path: str, sync: bool) -> None:  # noqa: N802
        self.files.pop(path, None)
        self.events.append(Delete(path))


class _File:
    def __init__(self, disk: SimulatedDisk, path: str):
        self.disk, self.path = disk, path

    @property
    def content(self) -> bytearray:
        return self.disk.files[self.path]

    def xRead(self, amount: int, offset: int) -> bytes:  # noqa: N802
        return bytes(self.content[offset : offset + amount])

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802
        event = Write(self.path, offset, bytes(data))
        _apply(self.content, event)
        self.disk.events.append(event)

    def xTruncate(self, size: int) -> None:  # noqa: N802
        event = Truncate(self.path, size)
        _apply(self.content, event)
        self.disk.events.append(event)

    def xSync(self, flags: int) -> None:  # noqa: N802
        self.disk.events.append(Sync(self.path))

    def xFileSize(self) -> int:  # noqa: N802
        return len(self.content)

    def xSectorSize(self) -> int:  # noqa: N802
        return SECTOR

    def xDeviceCharacteristics(self) -> int:  # noqa: N802
        return POWERSAFE_OVERWRITE

    def xFileControl(self, op: int, pointer: int) -> bool:  # noqa: N802
        return False

    def xCheckReservedLock(self) -> bool:  # noqa: N802
        return False

    def xLock(self, level: int) -> None:  # noqa: N802
        """One process uses it."""

    def xUnlock(self, level: int) -> None:  # noqa: N802
        """One process uses it."""

    def xClose(self) -> None:  # noqa: N802
        """The content stays with the disk."""


def _apply(content: bytearray, event: Write | Truncate) -> None:
    if isinstance(event, Truncate):
        del content[event.size :]
        return
    if len(content) < event.offset:
        content.extend(bytes(event.offset - len(content)))
    content[event.offset : event.offset + len(event.data)] = event.data


def after_power_loss(events: Iterable[Event], rng: random.Random) -> dict[str, bytes]:
    """What the disk holds when the power fails right after `events`."""
    safe: dict[str, bytearray] = {}
    pending: dict[str, list[Write | Truncate]] = {}
    for event in events:
        match event:
            case Write() | Truncate():
                safe.setdefault(event.file, bytearray())
                pending.setdefault(event.file, []).append(event)
            case Sync():
                for item in pending.pop(event.file, []):
                    _apply(safe[event.file], item)
            case Delete():
                safe.pop(event.file, None)
                pending.pop(event.file, None)
            case Note():
                pass
    for lost in pending.values():
        _lose(lost, safe, rng)
    return {
        file: bytes(content) for file, content in safe.items() if not file.startswith(TEMPORARY)
    }


def _lose(writes: list[Write | Truncate], safe: dict[str, bytearray], rng: random.Random) -> None:
    for write in writes:
        for survivor in _survivors(write, rng):
            _apply(safe[write.file], survivor)


def _survivors(event: Write | Truncate, rng: random.Random) -> Iterator[Write | Truncate]:
    """All of a write, nothing, or some of its sectors."""
    fate = rng.random()
    if fate < 0.4:
        return
    if fate < 0.8 or isinstance(event, Truncate):
        yield event
        return
    start, end = event.offset, event.offset + len(event.data)
    edges = [start, *range(start - start % SECTOR + SECTOR, end, SECTOR), end]
    for left, right in pairwise(edges):
        if rng.random() < 0.5:
            yield Write(event.file, left, event.data[left - start : right - start])


# --- the journal's connection to it


class DiskWitness(Witness):
    """The witness of a journal on that disk, of a machine that is not this one."""

    disk: ClassVar[SimulatedDisk]

    def __init__(self, path: Path, identity: int, *, like: Path | None = None):
        del like
        self._identity = identity
        self._boot = bytes(16)
        self._offset = random.randrange(SLOTS) * SLOT_BYTES
        self._path = str(path)
        if self._path not in self.disk.files:
            self._put(0, bytes(SLOTS * SLOT_BYTES))
            self.sync()

    def _write(self, slot: bytes) -> None:
        self._put(self._offset, slot)

    def _put(self, offset: int, data: bytes) -> None:
        event = Write(self._path, offset, data)
        _apply(self.disk.files.setdefault(self._path, bytearray()), event)
        self.disk.events.append(event)

    def sync(self) -> None:
        self.disk.events.append(Sync(self._path))

    def close(self) -> None:
        self.sync()


class _Rows:
    def __init__(self, rows: list[Any], rowcount: int):
        self._rows = iter(rows)
        self.rowcount = rowcount

    def fetchone(self) -> Any:
        return next(self._rows, None)

    def fetchall(self) -> list[Any]:
        return list(self._rows)

    def __iter__(self) -> Iterator[Any]:
        return self._rows

    def close(self) -> None:
        """All rows are here already."""


class IdleConnection:
    """Beside the one that the disk allows."""

    in_transaction = False

    def execute(self, sql: str) -> _Rows:
        return _Rows([(0,)], -1)

    def close(self) -> None:
        """There is nothing to close."""


class DiskConnection:
    """As much of `sqlite3.Connection` as the journal uses, over apsw."""

    def __init__(self, disk: SimulatedDisk, path: str, synchronous: str):
        self._synchronous = synchronous
        self._connection = apsw.Connection(path, vfs=disk.name)
        self._disk = disk
        disk.connections += 1
        # Without shared memory in the VFS, WAL works for one connection at a time.
        self.execute("PRAGMA locking_mode=EXCLUSIVE")

    @property
    def in_transaction(self) -> bool:
        return self._connection.in_transaction

    def execute(self, sql: str, parameters: Any = ()) -> _Rows:
        sql = sql.replace("synchronous=FULL", f"synchronous={self._synchronous}")
        try:
            rows = list(self._connection.execute(sql, parameters))
        except apsw.Error as error:
            raise sqlite3.OperationalError(str(error)) from error
        return _Rows(rows, self._connection.changes())

    def executemany(self, sql: str, parameters: Sequence[Any]) -> _Rows:
        for parameter in parameters:
            self.execute(sql, parameter)
        return _Rows([], -1)

    def close(self) -> None:
        self._disk.connections -= 1
        self._connection.close()
