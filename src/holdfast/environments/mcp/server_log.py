"""ServerLog: the last lines that a server wrote outside the protocol, for error messages.

Limited in size, and without secrets.
"""

from collections import deque
from collections.abc import Iterable

from holdfast.records.encoding.redaction import REDACTED, SHORTEST, redact

MAX_LINES = 20
MAX_LINE = 400
MAX_PARTIAL_BYTES = 64 * 1024


class ServerLog:
    """The lines that a server wrote to stderr, or to stdout by mistake, and how it ended."""

    def __init__(self, secrets: Iterable[str] = ()):
        self.ending = ""
        """How the server ended, for example "it ended with exit status 3"."""
        # Longest first: one secret may begin with another.
        usable = (secret for secret in secrets if len(secret) >= SHORTEST)
        self._secrets = sorted(usable, key=len, reverse=True)
        self._lines: deque[str] = deque(maxlen=MAX_LINES)
        self._partial = b""

    def feed(self, data: bytes) -> None:
        """Adds the complete lines of a stream."""
        *lines, partial = (self._partial + data).split(b"\n")
        for line in lines[-MAX_LINES:]:
            self.add(line.decode("utf-8", "replace"))
        # An endless line is dropped as a whole: a part of it might begin within a secret.
        self._partial = partial if len(partial) <= MAX_PARTIAL_BYTES else b""

    def add(self, line: str) -> None:
        # Redacted before it is cut: half a secret would not be recognized.
        line = self._redact(line.strip()[: 16 * MAX_LINE])[:MAX_LINE]
        if line and line not in list(self._lines)[-1:]:
            self._lines.append(line)

    def _redact(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, REDACTED)
        return redact(text)

    def append_to(self, message: str) -> str:
        """`message`, how the server ended, and its last lines."""
        if self._partial:
            self.feed(b"\n")
        message = "; ".join(filter(None, (self._redact(message), self.ending)))
        if not self._lines:
            return message
        return f"{message}; its last output:\n" + "\n".join(f"  | {line}" for line in self._lines)
