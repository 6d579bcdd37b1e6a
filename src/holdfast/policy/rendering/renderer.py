"""A renderer turns messages into ids, turns sampled ids into a message, and bridges two turns.

The bridge keeps a trajectory token-exact. It gives only the ids that *follow* a sampled completion,
so that the next prompt begins with exactly the ids that the engine sampled.
"""

import json
import sys
from array import array
from collections.abc import Sequence
from typing import Protocol

from holdfast.policy.rendering.parse_tool_calls import parse_hermes
from holdfast.policy.rendering.structure import Ids, Marks, Tools, hermes_marks
from holdfast.records.encoding.tokens import TYPE_IDS
from holdfast.records.message import Message, Role

_CODE_POINTS = "utf-32-le" if sys.byteorder == "little" else "utf-32-be"


class Renderer(Protocol):
    """A renderer. Its methods are pure functions of their arguments. Large prompts are rendered in
    threads, so several methods may run at once."""

    name: str
    """The renderer's name. It is a part of a run's identity: a run with another renderer is another
    run."""
    stop_token_ids: tuple[int, ...]

    def render(self, messages: Sequence[Message], tools: Tools) -> Sequence[int]:
        """Renders a whole conversation, ready for the assistant to speak. If the ids exist as a new
        `array("i")`, returning that array is cheapest."""
        ...

    def bridge(
        self, prompt: Ids, completion: Ids, messages: Sequence[Message], tools: Tools
    ) -> list[int] | None:
        """Returns the ids that follow prompt + completion, or None if the whole conversation has to
        be rendered again. The cost does not grow with the length of the prompt."""
        ...

    def parse(
        self, completion: Sequence[int], *, prompt: Sequence[int] = (), tools: Tools = ()
    ) -> Message:
        """Returns the assistant's message. Tool calls have no ids yet. Malformed calls stay text.

        `prompt` shows whether the completion begins inside of reasoning that the prompt has opened.
        """
        ...

    def decode(self, ids: Sequence[int], *, special: bool = True) -> str:
        """Returns the text of ids, for people and to find stop strings. The text must never be
        encoded again.

        Engines look for stop strings in the text without its special tokens.
        """
        ...


class ByteRenderer:
    """A renderer with a token for each byte of UTF-8, a token that opens a message and a token that
    ends it. It needs no model files, so tests and demos use it. Before the tokens are packed, they
    are the code points of a text, which makes rendering as fast as copying memory."""

    name = "bytes"
    OPEN = 256
    END = 257
    stop_token_ids: tuple[int, ...] = (END,)
    reasons = False
    """Whether replies hold reasoning apart from their text: they do not."""

    def render(self, messages: Sequence[Message], tools: Tools) -> Sequence[int]:
        tools_block = self._block("tools", json.dumps(list(tools), sort_keys=True)) if tools else ""
        return _code_points(tools_block + self._conversation(messages))

    def bridge(
        self, prompt: Ids, completion: Ids, messages: Sequence[Message], tools: Tools
    ) -> list[int] | None:
        # A completion that was cut at its length has no end token.
        end = "" if completion and completion[-1] == self.END else chr(self.END)
        return _code_points(end + self._conversation(messages)).tolist()

    def parse(
        self, completion: Sequence[int], *, prompt: Sequence[int] = (), tools: Tools = ()
    ) -> Message:
        text = self.decode(completion)
        rest, calls = parse_hermes(text)
        return Message(Role.ASSISTANT, rest, tool_calls=calls)

    def decode(self, ids: Sequence[int], *, special: bool = True) -> str:
        # Nearly always, only the last token is not a byte.
        body = ids[:-1] if len(ids) and ids[-1] >= 256 else ids
        try:
            raw = bytes(list(body))
        except ValueError:
            raw = bytes(token for token in ids if token < 256)
        return raw.decode("utf-8", "replace")

    def encode(self, text: str, *, whole: bool) -> list[int]:
        return list(text.encode("utf-8", "surrogatepass"))

    def call_marks(self, name: str) -> Marks:
        return hermes_marks(name, space="")

    def _conversation(self, messages: Sequence[Message]) -> str:
        """Returns the messages and the opening of the assistant's next message."""
        return "".join([*map(self._message, messages), self._opening(Role.ASSISTANT)])

    def _message(self, message: Message) -> str:
        text = message.text
        for call in message.tool_calls:
            name = json.dumps(call.name)
            text += f'<tool_call>{{"name": {name}, "arguments": {call.arguments}}}</tool_call>'
        return self._block(message.role, text)

    def _block(self, role: str, text: str) -> str:
        encoded = text.encode("utf-8", "surrogatepass").decode("latin-1")
        return f"{self._opening(role)}{encoded}{chr(self.END)}"

    def _opening(self, role: str) -> str:
        return f"{chr(self.OPEN)}{role}\n"


def _code_points(text: str) -> "array[int]":
    """Returns the code points of a text, packed."""
    ids: array[int] = array(TYPE_IDS)
    ids.frombytes(text.encode(_CODE_POINTS))
    return ids
