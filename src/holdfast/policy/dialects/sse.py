"""Parses server-sent events, from bytes to the data of events."""

from holdfast.records.errors import BadAnswer

MAX_EVENT_BYTES = 1 << 24
END = b"[DONE]"


class SseParser:
    """Keeps the beginning of an event until the event is whole. Drops comments and other fields."""

    __slots__ = ("_rest",)

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, chunk: bytes) -> list[bytes]:
        """Returns the data of the events that `chunk` completes."""
        data = self._rest + chunk if self._rest else chunk
        if b"\r" in data:
            # A CR at the very end may be half of a CRLF, so it waits for the next data.
            held = data.endswith(b"\r")
            whole = data[:-1] if held else data
            data = whole.replace(b"\r\n", b"\n").replace(b"\r", b"\n") + (b"\r" if held else b"")
        *events, self._rest = data.split(b"\n\n")
        if len(self._rest) > MAX_EVENT_BYTES:
            raise BadAnswer(
                f"the engine's stream has an event of more than {MAX_EVENT_BYTES:,} bytes"
            )
        complete = []
        for event in events:
            if event[:6] == b"data: " and b"\n" not in event:  # The usual case.
                complete.append(event[6:])
            elif data_lines := _data(event):
                complete.append(data_lines)
        return complete


def _data(event: bytes) -> bytes:
    lines = [line[5:].removeprefix(b" ") for line in event.split(b"\n") if line[:5] == b"data:"]
    return b"\n".join(lines)
