"""Tool calls in a model's text: `<tool_call>{"name": …, "arguments": …}</tool_call>`."""

import json
import uuid
from typing import Any

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"


class Calls:
    """Divides growing text into what is said and what is called.

    A block that is not what it should be is text like any other. White space after a call is held
    back until something follows it.
    """

    def __init__(self) -> None:
        self.made: list[dict[str, Any]] = []
        self._rest = ""
        self._inside = False

    def push(self, text: str) -> tuple[str, list[dict[str, Any]]]:
        """What can be said by now, and the calls that are complete."""
        self._rest += text
        said, before = "", len(self.made)
        while (piece := self._next()) is not None:
            said += piece
        return said, self.made[before:]

    def close(self) -> tuple[str, list[dict[str, Any]]]:
        """Nothing follows."""
        before = len(self.made)
        rest, self._rest = self._rest, ""
        if self._inside:
            return self._block(rest, end=""), self.made[before:]
        return ("" if self.made and not rest.strip() else rest), []

    def _next(self) -> str | None:
        """A piece of text, or None when more is needed to tell what it is."""
        if self._inside:
            block, mark, rest = self._rest.partition(_CLOSE)
            if not mark:
                return None
            self._inside, self._rest = False, rest
            return self._block(block, end=_CLOSE)
        said, mark, rest = self._rest.partition(_OPEN)
        if mark:
            self._inside, self._rest = True, rest
            return "" if self.made and not said.strip() else said
        return self._unmarked()

    def _unmarked(self) -> str | None:
        keep = next((n for n in range(len(_OPEN) - 1, 0, -1) if self._rest.endswith(_OPEN[:n])), 0)
        said = self._rest[: len(self._rest) - keep]
        if not said or (self.made and not said.strip()):
            return None
        self._rest = self._rest[len(said) :]
        return said

    def _block(self, block: str, *, end: str) -> str:
        try:
            call = json.loads(block)
            name, arguments = call["name"], call.get("arguments", {})
            if not isinstance(name, str):
                raise TypeError("a name is a string")
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return f"{_OPEN}{block}{end}"
        self.made.append(
            {
                "id": f"chatcmpl-tool-{uuid.uuid4().hex[:16]}",
                "type": "function",
                "function": {
                    "name": name,
                    "arguments": json.dumps(arguments, ensure_ascii=False),
                },
            }
        )
        return ""
