"""Renderer: messages to ids, sampled ids to a message, and the bridge from one turn to the next.

The bridge is what keeps a trajectory token-exact: it gives only the ids that *follow* a sampled
completion, so that the next prompt begins with exactly what the engine sampled.
"""

import json
from collections.abc import Sequence
from typing import Protocol

from holdfast.policy.tool_calls import hermes
from holdfast.records.message import Message, Role


class Renderer(Protocol):
    name: str
    """Part of a run's identity: other rendering is another run."""
    stop_token_ids: tuple[int, ...]

    def render(self, messages: Sequence[Message], tools: Sequence[dict[str, object]]) -> list[int]:
        """A whole conversation, ready for the assistant to speak."""
        ...

    def bridge(
        self,
        prompt: Sequence[int],
        completion: Sequence[int],
        messages: Sequence[Message],
        tools: Sequence[dict[str, object]],
    ) -> list[int] | None:
        """Only the ids that follow prompt + completion; None if only a full rendering will do.

        Its cost does not grow with the length of the prompt.
        """
        ...

    def parse(
        self,
        completion: Sequence[int],
        *,
        prompt: Sequence[int] = (),
        tools: Sequence[dict[str, object]] = (),
    ) -> Message:
        """The assistant's message. Tool calls have no ids yet; malformed ones stay text.

        The prompt tells whether it opened the reasoning that the completion goes on with.
        """
        ...

    def decode(self, ids: Sequence[int], *, special: bool = True) -> str:
        """The text of ids, for people and for finding stop strings: never to be encoded again.

        Engines look for stop strings in the text without its special tokens.
        """
        ...


class ByteRenderer:
    """One token per byte of UTF-8, one that opens a message and one that ends it.

    It needs no model files, which makes it the renderer of tests and demos.
    """

    name = "bytes"
    OPEN = 256
    END = 257
    stop_token_ids: tuple[int, ...] = (END,)

    def render(self, messages: Sequence[Message], tools: Sequence[dict[str, object]]) -> list[int]:
        ids: list[int] = []
        if tools:
            self._block(ids, "tools", json.dumps(list(tools), sort_keys=True))
        for message in messages:
            self._message(ids, message)
        ids += self._opening(Role.ASSISTANT)
        return ids

    def bridge(
        self,
        prompt: Sequence[int],
        completion: Sequence[int],
        messages: Sequence[Message],
        tools: Sequence[dict[str, object]],
    ) -> list[int] | None:
        # A completion that was cut by its length never wrote its own end.
        ids = [] if completion and completion[-1] == self.END else [self.END]
        for message in messages:
            self._message(ids, message)
        ids += self._opening(Role.ASSISTANT)
        return ids

    def parse(
        self,
        completion: Sequence[int],
        *,
        prompt: Sequence[int] = (),
        tools: Sequence[dict[str, object]] = (),
    ) -> Message:
        text = self.decode(completion)
        rest, calls = hermes(text)
        return Message(Role.ASSISTANT, rest, tool_calls=calls)

    def decode(self, ids: Sequence[int], *, special: bool = True) -> str:
        # Nearly always, only the last token is none of the bytes.
        body = ids[:-1] if len(ids) and ids[-1] >= 256 else ids
        try:
            raw = bytes(list(body))
        except ValueError:
            raw = bytes(token for token in ids if token < 256)
        return raw.decode("utf-8", "replace")

    def encode(self, text: str, *, whole: bool) -> list[int]:
        return list(text.encode("utf-8", "surrogatepass"))

    def _message(self, ids: list[int], message: Message) -> None:
        text = message.text
        for call in message.tool_calls:
            name = json.dumps(call.name)
            text += f'<tool_call>{{"name": {name}, "arguments": {call.arguments}}}</tool_call>'
        self._block(ids, message.role, text)

    def _block(self, ids: list[int], role: str, text: str) -> None:
        ids += self._opening(role)
        ids += text.encode("utf-8", "surrogatepass")
        ids.append(self.END)

    def _opening(self, role: str) -> list[int]:
        return [self.OPEN, *role.encode(), 10]
