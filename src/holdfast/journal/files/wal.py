"""Reads SQLite's write-ahead log from outside, to find commits that SQLite will not see.

SQLite reads the log up to the first frame that fails its checksum, and treats the rest as part of
an older log. After a power loss this is right. After damage it is wrong, because committed
transactions vanish silently. The two cases differ in the chain of checksums: each frame's checksum
continues the checksum of the frame before it, and a transaction begins only after the previous one
was synced. If another frame is chained to a commit frame, then the commit frame and everything
before it was on the disk. A bad frame at or before such a commit frame is therefore damage.

This module locks nothing. A log that others write meanwhile only grows, or begins again with new
salts. Therefore a frame that looks bad is read again. The format is described in
https://www.sqlite.org/fileformat2.html#walformat.
"""

import os
import struct
from array import array
from functools import cache
from pathlib import Path
from typing import BinaryIO

from msgspec import Struct

_HEADER = struct.Struct(">8I")
_FRAME = struct.Struct(">6I")
# The lowest bit gives the byte order of the checksums.
_MAGIC = 0x377F0682
# With large pages, a batch takes fewer writes, and a 4 KB record needs no overflow chain. Still
# larger pages make small commits write more and gain nothing (measured with benchmarks/journal.py).
PAGE_SIZE = 16384
_MOD = 1 << 32
_LANE = 64
# How often a changing log is read again before it is left to its writers.
_TRIES = 10
Sum = tuple[int, int]


class LogScan(Struct, frozen=True):
    """The result of reading a log: its content in numbers, and whether a part of it is damaged."""

    size: int = 0
    commits: int = 0
    """The number of whole transactions that SQLite will read."""
    end: int = 0
    """The end of the last of these transactions, in bytes."""
    is_damaged: bool = False
    bad: int = 0
    """The position of the first bad frame, in bytes."""
    beyond: int = 0
    """The number of commits at or behind the first bad frame."""
    pages: frozenset[int] = frozenset()
    """The pages in the transactions that SQLite will read."""


def log_of(journal: Path) -> Path:
    """Returns the path of the journal's log. It follows symbolic links, as SQLite does."""
    return beside(journal, "-wal")


def beside(journal: Path, suffix: str) -> Path:
    return Path(os.path.realpath(journal) + suffix)


def scan(log: Path) -> LogScan:
    """Reads the whole log; a missing log counts as an empty one."""
    try:
        with log.open("rb") as file:
            for _ in range(_TRIES):
                reading = _Reading(file)
                log_scan = reading.scan()
                if not log_scan.is_damaged or reading.is_still_so():
                    return log_scan
    except FileNotFoundError:
        return LogScan()
    return LogScan()


class _Frame(Struct, frozen=True):
    page: int
    commit: int
    salts: Sum
    sums: Sum


class _Reading:
    """The reading of one log, which happens once."""

    def __init__(self, file: BinaryIO):
        self._file = file
        self._size = os.fstat(file.fileno()).st_size
        self._raw = self._read(0, _HEADER.size)
        fields = _HEADER.unpack(self._raw) if len(self._raw) == _HEADER.size else (0,) * 8
        # If the header is damaged, these are the values that it must have had.
        self._order = "big" if fields[0] == _MAGIC | 1 else "little"
        self._page_size = fields[2] if _is_page_size(fields[2]) else PAGE_SIZE
        self._salts: Sum = (fields[4], fields[5])
        self._sums: Sum = (fields[6], fields[7])
        self._bad = 0
        self._before: Sum = (0, 0)

    def scan(self) -> LogScan:
        count = max(0, self._size - _HEADER.size) // (_FRAME.size + self._page_size)
        commits, last, pages = self._good_prefix(count)
        beyond, is_damaged = self._rest(count)
        return LogScan(
            size=self._size,
            commits=commits,
            end=self._offset(last + 1) if commits else _HEADER.size,
            is_damaged=is_damaged,
            bad=self._offset(self._bad),
            beyond=beyond,
            pages=pages,
        )

    def _good_prefix(self, count: int) -> tuple[int, int, frozenset[int]]:
        """Returns the number of whole transactions, their last frame, and their pages."""
        commits, last, sums = 0, -1, self._sums
        pages: set[int] = set()
        pending: set[int] = set()
        good = 0 if self._has_good_header() else None
        while good is not None and good < count:
            if not self._is_good(good, sums):
                break
            frame = self._frame(good)
            pending.add(frame.page)
            if frame.commit:
                commits, last = commits + 1, good
                pages |= pending
                pending.clear()
            good, sums = good + 1, frame.sums
        self._bad, self._before = good or 0, sums
        return commits, last, frozenset(pages)

    def _rest(self, count: int) -> tuple[int, bool]:
        """Returns the number of this log's commits from the first bad frame on, and whether one of
        them was synced."""
        salts = self._salts
        if not self._has_good_header() and count:
            salts = self._frame(0).salts  # The header may contain anything.
        beyond, is_damaged = 0, False
        for at in range(self._bad, count):
            frame = self._frame(at)
            if not frame.commit or frame.salts != salts:
                continue
            beyond += 1
            if not is_damaged and at + 1 < count:
                after = self._frame(at + 1)
                is_damaged = after.salts == salts and (
                    self._computed(at + 1, frame.sums) == after.sums
                )
        return beyond, is_damaged

    def is_still_so(self) -> bool:
        """Returns whether the first bad frame is still bad when it is read after the frames that
        prove the damage."""
        is_bad = not self._has_good_header() or not self._is_good(self._bad, self._before)
        # In this order, because a restarted log gets its new header before its new frames.
        return is_bad and self._read(0, _HEADER.size) == self._raw

    def _is_good(self, at: int, sums: Sum) -> bool:
        """Returns whether the frame belongs to this log and follows a frame with these
        checksums."""
        frame = self._frame(at)
        return frame.salts == self._salts and self._computed(at, sums) == frame.sums

    def _has_good_header(self) -> bool:
        if len(self._raw) < _HEADER.size or _HEADER.unpack(self._raw)[0] | 1 != _MAGIC | 1:
            return False
        body = self._raw[: _HEADER.size - 8]
        return _checksum(body, (0, 0), self._order) == self._sums

    def _frame(self, at: int) -> _Frame:
        raw = self._read(self._offset(at), _FRAME.size)
        page, commit, *rest = _FRAME.unpack(raw) if len(raw) == _FRAME.size else (0,) * 6
        return _Frame(page, commit, (rest[0], rest[1]), (rest[2], rest[3]))

    def _computed(self, at: int, sums: Sum) -> Sum | None:
        """Returns the checksum that the frame should have after a frame with these checksums; None
        if the frame is incomplete."""
        raw = self._read(self._offset(at), _FRAME.size + self._page_size)
        if len(raw) != _FRAME.size + self._page_size:
            return None  # Somebody cut the log in the meantime.
        sums = _checksum(raw[:8], sums, self._order)
        return _page_checksum(raw[_FRAME.size :], sums, self._order)

    def _offset(self, at: int) -> int:
        return _HEADER.size + at * (_FRAME.size + self._page_size)

    def _read(self, offset: int, size: int) -> bytes:
        return os.pread(self._file.fileno(), size, offset)


def _is_page_size(size: int) -> bool:
    return 512 <= size <= 65536 and size & (size - 1) == 0


def _checksum(data: bytes, sums: Sum, order: str) -> Sum:
    """Returns SQLite's checksum: each pair of words is added to two sums that are added to each
    other."""
    numbers = array("I", data)
    if order != _NATIVE:
        numbers.byteswap()
    first, second = sums
    for at in range(0, len(numbers), 2):
        first = (first + numbers[at] + second) % _MOD
        second = (second + numbers[at + 1] + first) % _MOD
    return first, second


_NATIVE = "little" if array("I", b"\1\0\0\0")[0] == 1 else "big"


def _page_checksum(page: bytes, sums: Sum, order: str) -> Sum:
    """Returns the checksum of a number of pairs that is a power of two, ten times as fast as
    `_checksum`.

    A pair changes the sums by a fixed matrix. The first half of the pairs can therefore be moved
    onto the second half all at once, with each pair in a lane of a long integer.
    """
    pairs = len(page) // 8
    number = int.from_bytes(_in_little_order(page, order), "little")
    mask = _mask(pairs)
    first = number & mask
    second = (first + (number >> 32 & mask)) & mask
    while pairs > 1:
        pairs //= 2
        a, b, c, d = _power(pairs)
        mask, cut = _mask(pairs), pairs * _LANE
        low, high = first & mask, second & mask
        first = ((low * a & mask) + (high * b & mask) + (first >> cut)) & mask
        second = ((low * c & mask) + (high * d & mask) + (second >> cut)) & mask
    a, b, c, d = _power(len(page) // 8)
    return (
        (a * sums[0] + b * sums[1] + first) % _MOD,
        (c * sums[0] + d * sums[1] + second) % _MOD,
    )


def _in_little_order(page: bytes, order: str) -> bytes:
    if order == "little":
        return page
    numbers = array("I", page)
    numbers.byteswap()
    return numbers.tobytes()


@cache
def _mask(lanes: int) -> int:
    """Returns a mask of the lower half of each lane."""
    return int.from_bytes(b"\xff\xff\xff\xff\0\0\0\0" * lanes, "little")


@cache
def _power(pairs: int) -> tuple[int, int, int, int]:
    """Returns the matrix that changes the two sums as this many pairs of zeros do."""
    if pairs == 1:
        return 1, 1, 1, 2
    a, b, c, d = _power(pairs // 2)
    return (
        (a * a + b * c) % _MOD,
        (a * b + b * d) % _MOD,
        (c * a + d * c) % _MOD,
        (c * b + d * d) % _MOD,
    )
