"""The result of an MCP tool call as text for a model."""

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from mcp_types import BlobResourceContents, CallToolResult, ContentBlock


def text_of(result: "CallToolResult") -> str:
    """The texts, line by line, with a placeholder for each block that is no text. Without any text,
    also the structured content, as JSON."""
    texts = [_text(block) for block in result.content]
    lines = [
        _placeholder(block) if text is None else text
        for block, text in zip(result.content, texts, strict=True)
    ]
    if result.structured_content is not None and all(text is None for text in texts):
        lines.append(msgspec.json.encode(result.structured_content).decode())
    return "\n".join(lines)


def _text(block: "ContentBlock") -> str | None:
    if block.type == "text":
        return block.text
    if block.type == "resource":
        return getattr(block.resource, "text", None)
    return None


def _placeholder(block: "ContentBlock") -> str:
    match block.type:
        case "image" | "audio":
            return f"[{block.type}: {block.mime_type}, {_size(block.data)} bytes]"
        case "resource_link":
            size = "" if block.size is None else f", {block.size} bytes"
            return f"[resource: {block.uri}, {block.mime_type or 'unknown type'}{size}]"
        case "resource":
            resource: BlobResourceContents = block.resource  # type: ignore[assignment]
            kind = resource.mime_type or "unknown type"
            return f"[resource: {resource.uri}, {kind}, {_size(resource.blob)} bytes]"
        case _:
            return f"[{block.type}]"


def _size(base64: str) -> int:
    return len(base64.rstrip("=")) * 3 // 4
