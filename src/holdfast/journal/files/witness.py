"""The witness is a small file outside the journal that knows the number of commits.

If a piece of the write-ahead log is lost, whole commits are lost, and the rest looks like a journal
without them. After each commit was synced, and before its callers wake, the writer therefore notes
the commit's number here. The note itself is not synced: it survives the process, and it costs no
second wait for the disk. It is synced when the log is copied and at a clean end. A power loss can
only take notes away, so the witness then knows fewer commits than the journal. If the witness knows
more commits than the journal, commits are lost.

The file has a fixed number of slots, and each writer chooses one slot, so that writers need not
wait for each other. If two writers share a slot, the witness knows a little less.

The witness of a file lies beside the file and notes the journal's commits by the journal's
identity. The witness of a server's journal lies on each machine that writes, and notes the commits
of each writer of this machine by the writer's name (see `postgres.schema`).
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
# A mark, the journal's identity, the number, its time, and the boot id of the machine.
_SLOT = struct.Struct("<8sQQd16s")
_MARK = b"HFwitn01"
_CRC = struct.Struct("<I")
_BOOT = Path("/proc/sys/kernel/random/boot_id")


class Note(Struct, frozen=True):
    """The number of a commit, as the witness file notes it."""

    number: int
    time: float
    is_of_this_boot: bool
    """Whether the note was written since the machine's last boot. No power loss can then have
    removed a newer note."""


def witness_of(journal: Path) -> Path:
    return beside(journal, SUFFIX)


class Witness:
    """The part of the witness that a writer uses."""

    def __init__(self, path: Path, identity: int, *, like: Path | None = None):
        """`like` is a file whose permissions the witness gets. Without it, only the owner may read
        and write the witness."""
        self._identity = identity
        self._boot = _boot()
        self._offset = secrets.randbelow(SLOTS) * SLOT_BYTES
        self._file = _open(path, like)

    def note(self, number: int) -> None:
        """Notes that the commit with this number was synced."""
        # The commit is durable even if the note fails; the witness then knows less.
        with suppress(OSError):
            self._write(_packed(self._identity, number, self._boot))

    def sync(self) -> None:
        with suppress(OSError):  # The witness then knows less, as above.
            os.fdatasync(self._file)

    def close(self) -> None:
        self.sync()
        os.close(self._file)

    def _write(self, slot: bytes) -> None:
        os.pwrite(self._file, slot, self._offset)


def notes(path: Path) -> dict[int, Note]:
    """Returns the newest note of each identity. The file may have notes of other journals or
    writers."""
    try:
        content = path.read_bytes()
    except OSError:
        return {}  # The file is missing or cannot be read, so it tells nothing.
    boot = _boot()
    newest: dict[int, Note] = {}
    for at in range(0, len(content), SLOT_BYTES):
        identity, note = _unpacked(content[at : at + SLOT_BYTES], boot)
        if note is not None and (identity not in newest or newest[identity].number < note.number):
            newest[identity] = note
    return newest


def begin_anew(journal: Path, identity: int, number: int) -> None:
    """Replaces the witness by a new file that names `number` as the journal's last commit."""
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
    """Removes the unfinished new witness of a killed writer."""
    beside(journal, _NEW).unlink(missing_ok=True)


def _open(path: Path, like: Path | None) -> int:
    """Opens the witness, and creates it with all its slots (see `Witness`)."""
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
    """Returns the identity and the note of a slot; 0 and None for an empty or damaged slot."""
    if len(slot) < _SLOT.size + _CRC.size or not slot.startswith(_MARK):
        return 0, None
    if _CRC.unpack_from(slot, _SLOT.size)[0] != zlib.crc32(slot[: _SLOT.size]):
        return 0, None
    _, identity, number, when, noted_in = _SLOT.unpack_from(slot)
    return identity, Note(number, when, boot == noted_in)


def _boot() -> bytes:
    """Returns the boot's id. If it is unknown, returns a random id, so that no note is trusted."""
    try:
        return bytes.fromhex(_BOOT.read_text().strip().replace("-", ""))
    except (OSError, ValueError):
        return secrets.token_bytes(16)
