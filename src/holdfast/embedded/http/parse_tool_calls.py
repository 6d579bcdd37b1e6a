"""Finds tool calls in a model's text: `<tool_call>{"name": …, "arguments": …}</tool_call>`."""

import json
import uuid
from typing import Any

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"


class ToolCallParser:
    """Divides growing text into content and `calls`. A block that is not a valid call is text like
    any other. White space after a call is held back until more content follows."""

    def __init__(self) -> None:
        self.calls: list[dict[str, Any]] = []
        self._rest = ""
        self._inside = False

    def push(self, text: str) -> str:
        """Adds text and returns the content that is certain now. Complete calls are added to
        `calls`."""
        self._rest += text
        content = ""
        while (piece := self._next()) is not None:
            content += piece
        return content

    def close(self) -> str:
        """Ends the text and returns the rest of the content."""
        rest, self._rest = self._rest, ""
        if self._inside:
            return self._parse_block(rest, end="")
        return "" if self.calls and not rest.strip() else rest

    def _next(self) -> str | None:
        """Returns a piece of content, or None if more text is needed to decide."""
        if self._inside:
            block, mark, rest = self._rest.partition(_CLOSE)
            if not mark:
                return None
            self._inside, self._rest = False, rest
            return self._parse_block(block, end=_CLOSE)
        content, mark, rest = self._rest.partition(_OPEN)
        if mark:
            self._inside, self._rest = True, rest
            return "" if self.calls and not content.strip() else content
        return self._take_content()

    def _take_content(self) -> str | None:
        keep = next((n for n in range(len(_OPEN) - 1, 0, -1) if self._rest.endswith(_OPEN[:n])), 0)
        content = self._rest[: len(self._rest) - keep]
        if not content or (self.calls and not content.strip()):
            return None
        self._rest = self._rest[len(content) :]
        return content

    def _parse_block(self, block: str, *, end: str) -> str:
        """Adds a call. Returns the block as content if it is not a call."""
        try:
            call = json.loads(block)
            name, arguments = call["name"], call.get("arguments", {})
            if not isinstance(name, str):
                raise TypeError("a name is a string")
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return f"{_OPEN}{block}{end}"
        function = {"name": name, "arguments": json.dumps(arguments, ensure_ascii=False)}
        call_id = f"chatcmpl-tool-{uuid.uuid4().hex[:16]}"
        self.calls.append({"id": call_id, "type": "function", "function": function})
        return ""
