"""The witness: a small file outside the journal that knows how many commits there were.

Losing a piece of the write-ahead log loses whole commits, and what is left looks like a
journal in which they never happened. So each writer, when a commit was synced and before its
callers wake, notes its number here. The note is not synced: it survives the process, and costs no
second wait for the disk. It is synced when the log is copied and at a clean end. So the witness may
know less than the journal, after a power loss; never more. Where it does know more, commits are
lost.

The file has a fixed number of slots, and each writer writes into one of its own, so that writers
need not wait for each other. Two that share a slot make the witness know a little less.

The witness of a file lies beside it and knows the journal's commits, by the journal's identity.
That of a server's journal lies on each machine that writes, and knows the commits of each writer of
this machine, by the writer's name: see `postgres.schema`.
"""

import os
import secrets
import struct
import time
import zlib
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from holdfast import crashpoint
from holdfast.journal.files.folders import make_alike, sync_folder
from holdfast.journal.files.wal import beside
from holdfast.private_files import open_private

SUFFIX = "-witness"
_NEW = f"{SUFFIX}-new"
SLOTS = 64
SLOT_BYTES = 64
# A mark, the journal's identity, the number, when that was, and the boot of the machine.
_SLOT = struct.Struct("<8sQQd16s")
_MARK = b"HFwitn01"
_CRC = struct.Struct("<I")
_BOOT = Path("/proc/sys/kernel/random/boot_id")


class Note(Struct, frozen=True):
    """One note of the witness: there was a commit with this number."""

    number: int
    time: float
    is_of_this_boot: bool
    """The machine was not started anew since, so nothing that was noted is forgotten."""


def witness_of(journal: Path) -> Path:
    return beside(journal, SUFFIX)


class Witness:
    """A writer's side of it."""

    def __init__(self, path: Path, identity: int, *, like: Path | None = None):
        """`like`: the file whose readers and writers may read and write it; else only its owner."""
        self._identity = identity
        self._boot = _boot()
        self._offset = secrets.randbelow(SLOTS) * SLOT_BYTES
        self._file = _open(path, like)

    def note(self, number: int) -> None:
        """That commit was synced."""
        with suppress(OSError):  # The commit is durable; the witness only knows less.
            self._write(_packed(self._identity, number, self._boot))

    def sync(self) -> None:
        with suppress(OSError):  # As above.
            os.fdatasync(self._file)

    def close(self) -> None:
        self.sync()
        os.close(self._file)

    def _write(self, slot: bytes) -> None:
        os.pwrite(self._file, slot, self._offset)


def notes(path: Path) -> dict[int, Note]:
    """The notes by identity: there may have been other journals, or other writers."""
    try:
        content = path.read_bytes()
    except OSError:
        return {}  # There is none, or it is not ours to read: it says nothing.
    boot = _boot()
    newest: dict[int, Note] = {}
    for at in range(0, len(content), SLOT_BYTES):
        identity, note = _unpacked(content[at : at + SLOT_BYTES], boot)
        if note is not None and (identity not in newest or newest[identity].number < note.number):
            newest[identity] = note
    return newest


def begin_anew(journal: Path, identity: int, number: int) -> None:
    """From now on this is the journal's last commit, whatever the witness had noted."""
    path, new = witness_of(journal), beside(journal, _NEW)
    remove_unfinished(journal)
    file = _open(new, journal)
    try:
        os.pwrite(file, _packed(identity, number, _boot()), 0)
        os.fsync(file)
    finally:
        os.close(file)
    crashpoint.reach("journal.repairing")
    new.replace(path)
    sync_folder(path.parent)


def remove_unfinished(journal: Path) -> None:
    """Removes what a killed writer left of a new witness."""
    beside(journal, _NEW).unlink(missing_ok=True)


def _open(path: Path, like: Path | None) -> int:
    """With room for all slots; see `Witness`."""
    file = open_private(path)
    try:
        if os.fstat(file).st_size < SLOTS * SLOT_BYTES:
            if like is not None:
                make_alike(file, like)
            os.pwrite(file, bytes(SLOTS * SLOT_BYTES), 0)
            os.fsync(file)
            sync_folder(path.parent)
    except BaseException:
        os.close(file)
        raise
    return file


def _packed(identity: int, number: int, boot: bytes) -> bytes:
    slot = _SLOT.pack(_MARK, identity, number, time.time(), boot)
    return slot + _CRC.pack(zlib.crc32(slot))


def _unpacked(slot: bytes, boot: bytes) -> tuple[int, Note | None]:
    """The journal's identity, and the note; None for an empty or damaged slot."""
    if len(slot) < _SLOT.size + _CRC.size or not slot.startswith(_MARK):
        return 0, None
    if _CRC.unpack_from(slot, _SLOT.size)[0] != zlib.crc32(slot[: _SLOT.size]):
        return 0, None
    _, identity, number, when, noted_in = _SLOT.unpack_from(slot)
    return identity, Note(number, when, boot == noted_in)


def _boot() -> bytes:
    """Unknown, it is another one each time: nothing is vouched for."""
    try:
        return bytes.fromhex(_BOOT.read_text().strip().replace("-", ""))
    except (OSError, ValueError):
        return secrets.token_bytes(16)
