"""Renders a short conversation to learn what a chat template appends to a long one."""

import json
from collections.abc import Sequence

from msgspec import Struct

from holdfast.policy.rendering.jinja import ChatTemplate, Dicts, template_errors
from holdfast.policy.rendering.tokenizer import Tokenizer

USER_TEXT = "hfzasked"
REASONING_TEXT = "hfzthought"
REPLY_TEXT = "hfzsaid"
ARGUMENT_TEXT = "hfzgiven"


class TemplateShape(Struct, frozen=True):
    """Which parts a completion has (reasoning, text, tool calls), without their texts."""

    reasoning: bool = False
    content: bool = True
    calls: tuple[str, ...] = ()

    def marks(self) -> tuple[str, ...]:
        arguments = tuple(f"{ARGUMENT_TEXT}{index}" for index in range(len(self.calls)))
        return (
            *((REASONING_TEXT,) if self.reasoning else ()),
            *((REPLY_TEXT,) if self.content else ()),
            *arguments,
        )

    def assistant(self, ids: Sequence[str]) -> dict[str, object]:
        message: dict[str, object] = {
            "role": "assistant",
            "content": REPLY_TEXT if self.content else "",
        }
        if self.reasoning:
            message["reasoning_content"] = REASONING_TEXT
        if self.calls:
            message["tool_calls"] = [
                _call(name, index, ids[index] if index < len(ids) else f"call{index:05}")
                for index, name in enumerate(self.calls)
            ]
        return message


class StandIn:
    """Learns what a template writes after an assistant's turn, and how it ends a turn.

    `end` is the token that ends a turn, or None if the template has no such token. Without it,
    there is no bridge to new messages. `closing` are the ids that complete a turn that was cut.
    """

    def __init__(self, template: ChatTemplate, tokenizer: Tokenizer):
        self._template = template
        self._tokenizer = tokenizer
        self.end: int | None = None
        self.closing: list[int] = []
        self._ending = ""
        self._find_end()
        self._known: dict[str, str] = {}

    def following(self, shape: TemplateShape, messages: Dicts, tools: Dicts) -> list[int] | None:
        """Returns the ids that follow the end of the assistant's turn if `messages` come next.
        Returns None if the stand-in does not prove that the template only appends."""
        if self.end is None:
            return None
        ids = tuple(
            str(message["tool_call_id"]) for message in messages if message.get("tool_call_id")
        )
        try:
            before, turn = self._before(tools), self._turn(shape, ids, tools)
            text = self._template.render(
                [_user(), shape.assistant(ids), *messages], tools, opening=True
            )
        except template_errors():
            # The template may allow the real conversation although it refuses this test
            # conversation. If it refuses both, rendering reports the reason.
            return None
        span = self._span(text, shape, len(before)) if text.startswith(before) else None
        if span is None or not turn or text[slice(*span)] != turn:
            return None
        return self._tokenizer.encode(text[span[1] - len(self._ending) :])[1:]

    def speaking_again(self, tools: Dicts) -> list[int] | None:
        """Returns the ids between the end of an assistant's turn and another assistant's turn right
        after it. If the template marks no end of a turn, the ids begin after the last word of the
        first turn. Returns None if the template does not allow two such turns."""
        spoken = [_user(), TemplateShape().assistant(())]
        try:
            text = self._template.render(spoken, tools, opening=True)
            opening = self._opening(spoken, tools) or self._opening(spoken[:1], tools)
        except template_errors():
            return None
        start = text.rfind(REPLY_TEXT)
        end = text.find(self._ending, start + len(REPLY_TEXT))
        if start < 0 or end < 0:
            return None
        after = text[end + len(self._ending) :]
        after = after if after.endswith(opening) else after + opening
        # From the end marker on, which is one token. So the text after it is encoded as in the
        # whole prompt.
        return self._tokenizer.encode(self._ending + after)[1 if self._ending else 0 :]

    def _opening(self, conversation: Dicts, tools: Dicts) -> str:
        """Returns the text that the template adds after a conversation to open the assistant's
        turn, or "" if it adds none."""
        closed = self._template.render(conversation, tools, opening=False)
        text = self._template.render(conversation, tools, opening=True)
        return text[len(closed) :] if text.startswith(closed) else ""

    def _before(self, tools: Dicts) -> str:
        """Returns the prompt before the assistant's turn."""
        tools_key = json.dumps(list(tools))
        # Read once, because another thread may replace it at any moment.
        known = self._known.get(tools_key)
        if known is None:
            known = self._template.render([_user()], tools, opening=True)
            self._known = {tools_key: known}
        return known

    def _turn(self, shape: TemplateShape, ids: Sequence[str], tools: Dicts) -> str:
        """Returns the assistant's turn without any messages after it, or "" if the template leaves
        out a part of the turn."""
        text = self._template.render([_user(), shape.assistant(ids)], tools, opening=False)
        span = self._span(text, shape, text.find(USER_TEXT) + len(USER_TEXT))
        return text[slice(*span)] if span else ""

    def _span(self, text: str, shape: TemplateShape, start: int) -> tuple[int, int] | None:
        """Returns the range from the first mark of the assistant's turn to the end of its end
        marker."""
        first = at = text.find(shape.marks()[0], start)
        for mark in shape.marks():
            at = text.find(mark, at) if at >= 0 else at
        end = text.find(self._ending, at) if at >= 0 else -1
        return None if end < 0 else (first, end + len(self._ending))

    def _find_end(self) -> None:
        try:
            conversation = [_user(), TemplateShape().assistant(())]
            text = self._template.render(conversation, (), opening=False)
        except template_errors():
            return
        start = text.rfind(REPLY_TEXT) + len(REPLY_TEXT)
        marker = self._tokenizer.control(text, start)
        if REPLY_TEXT not in text or marker is None or text[start : marker[0]].strip():
            return
        if not self._is_boundary(text, marker[0]):
            return
        self._ending = text[slice(*marker)]
        self.end = self._tokenizer.convert_tokens_to_ids(self._ending)
        self.closing = self._tokenizer.encode(text[start : marker[1]])

    def _is_boundary(self, text: str, at: int) -> bool:
        """Returns whether the text before `at` and the text from `at` on, encoded separately, give
        the ids of the whole text."""
        encode = self._tokenizer.encode
        return encode(text) == [*encode(text[:at]), *encode(text[at:])]


def _user() -> dict[str, object]:
    return {"role": "user", "content": USER_TEXT}


def _call(name: str, index: int, identifier: str) -> dict[str, object]:
    function = {"name": name, "arguments": {"given": f"{ARGUMENT_TEXT}{index}"}}
    return {"id": identifier, "type": "function", "function": function}
