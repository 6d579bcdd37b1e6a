"""Output: keeps the beginning and the end of a long output, and counts all of it."""

from collections.abc import Mapping

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB
NOTHING: Mapping[bytes, bytes] = {}


def amount(size: int) -> str:
    for unit, name in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if size >= unit:
            return f"{size / unit:.4g} {name}"
    return f"{size} bytes"


class Output:
    """Keeps at most `limit` bytes of an output. `total` counts all bytes."""

    def __init__(self, limit: int):
        self.total = 0
        self._half = limit // 2
        self._rest = limit - self._half
        self._head = bytearray()
        self._tail = bytearray()

    def add(self, chunk: bytes) -> None:
        self.total += len(chunk)
        room = self._half - len(self._head)
        if room > 0:
            self._head += chunk[:room]
            chunk = chunk[room:]
        self._tail += chunk
        # Not after every chunk, because each cut copies the tail.
        if len(self._tail) > 4 * self._rest + 65536:
            del self._tail[: -self._rest]

    def text(self, rename: Mapping[bytes, bytes] = NOTHING) -> str:
        """Returns the output as text for the model. `rename` replaces paths of this machine."""
        tail = bytes(self._tail[-self._rest :] if self._rest else b"")
        left_out = self.total - len(self._head) - len(tail)
        if not left_out:
            return _renamed(bytes(self._head) + tail, rename).decode("utf-8", "replace")
        head = _renamed(_without_torn_end(bytes(self._head)), rename).decode("utf-8", "replace")
        end = _renamed(_without_torn_start(tail), rename).decode("utf-8", "replace")
        return f"{head}\n[… {amount(left_out)} left out …]\n{end}"


def _renamed(text: bytes, rename: Mapping[bytes, bytes]) -> bytes:
    for old, new in rename.items():
        text = text.replace(old, new)
    return text


def _without_torn_end(text: bytes) -> bytes:
    """Returns the text without an incomplete character at its end."""
    for back in range(1, min(4, len(text)) + 1):
        byte = text[-back]
        if byte & 0xC0 == 0x80:
            continue
        length = 1 + (byte >= 0xC0) + (byte >= 0xE0) + (byte >= 0xF0)
        return text[:-back] if length > back else text
    return text


def _without_torn_start(text: bytes) -> bytes:
    start = 0
    while start < min(3, len(text)) and text[start] & 0xC0 == 0x80:
        start += 1
    return text[start:]
