"""Words: the last that a server said beside the protocol, for the error that may need them.

Bounded, and never shown with a secret in them.
"""

from collections import deque
from collections.abc import Iterable

from holdfast.records.redaction import REDACTED, SHORTEST, redact

MAX_LINES = 20
MAX_LINE = 400
LONGEST_REST = 64 * 1024


class McpTexts:
    """What a session's server wrote to stderr, or to stdout by mistake, and how it ended."""

    def __init__(self, secrets: Iterable[str] = ()):
        self.ending = ""
        """How the server ended, once it did: "it ended with exit status 3"."""
        # Longest first: one secret may begin with another.
        self._secrets = sorted((one for one in secrets if len(one) >= SHORTEST), key=len)[::-1]
        self._lines: deque[str] = deque(maxlen=MAX_LINES)
        self._rest = b""

    def hear(self, data: bytes) -> None:
        """Part of a stream; a line counts when it is whole."""
        *lines, rest = (self._rest + data).split(b"\n")
        for line in lines[-MAX_LINES:]:
            self.say(line.decode("utf-8", "replace"))
        # An endless line goes as a whole: its rest might begin within a secret.
        self._rest = rest if len(rest) <= LONGEST_REST else b""

    def say(self, line: str) -> None:
        # Redacted before it is shortened: half a secret is still one.
        line = self.clean(line.strip()[: 16 * MAX_LINE])[:MAX_LINE]
        if line and line not in list(self._lines)[-1:]:
            self._lines.append(line)

    def clean(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, REDACTED)
        return redact(text)

    def added_to(self, message: str) -> str:
        """`message`, how the server ended, and its last words."""
        if self._rest:
            self.hear(b"\n")
        message = "; ".join(part for part in (self.clean(message), self.ending) if part)
        if not self._lines:
            return message
        return f"{message}; its last words:\n" + "\n".join(f"  | {line}" for line in self._lines)
