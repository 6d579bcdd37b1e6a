"""Completion parser: sampled ids to a message, by the markup that a chat template mentions."""

from collections.abc import Sequence
from typing import Any

from holdfast.policy.rendering.parse_tool_calls import (
    assistant_message,
    from_attempts,
    parse_hermes,
    split_reasoning,
)
from holdfast.policy.rendering.tokenizer import Tokenizer, import_extra
from holdfast.records.errors import UsageError
from holdfast.records.message import Message

HERMES, PLAIN = "hermes", "none"
_DETECTED = (
    ("<arg_key>", "glm"),
    ("<function=", "qwen3.5"),
    ("<｜tool▁calls▁begin｜>", "deepseek-v3"),
    ("<tool_call>", HERMES),
)


class CompletionParser:
    """Whatever was sampled becomes a message; what is no markup, or broken markup, is its text."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        template: str,
        *,
        stops: Sequence[int],
        tool_parser: str | None = None,
    ):
        self.name = tool_parser or next(
            (name for mark, name in _DETECTED if mark in template), PLAIN
        )
        self.reasons = "</think>" in template
        """Whether the template keeps reasoning apart from text."""
        end = tokenizer.encode("</think>")
        self.reasoning_end = end[0] if self.reasons and len(end) == 1 else None
        self._tokenizer = tokenizer
        self._stops = frozenset(stops)
        self._tools = _package_parser(self.name, tokenizer)

    def parse(self, completion: Sequence[int], *, prompt: Sequence[int] = ()) -> Message:
        ids = self._before_end(completion)
        text = self._tokenizer.decode(ids)
        reasoning, rest = None, text
        if self.reasons:
            reasoning, rest = split_reasoning(text, opened=self._opened(prompt))
        if self.name == PLAIN:
            return assistant_message(rest, reasoning=reasoning)
        if self._tools is None:
            content, calls = parse_hermes(rest)
            return assistant_message(content, reasoning=reasoning, calls=calls)
        return self._with_package(ids, rest, reasoning)

    def is_thinking(self, completion: Sequence[int], prompt: Sequence[int]) -> bool:
        """Whether the completion ends in the middle of reasoning."""
        if not self.reasons:
            return False
        text = self._tokenizer.decode(self._before_end(completion))
        is_open = text.lstrip().startswith("<think>") or self._opened(prompt)
        return is_open and "</think>" not in text

    def _with_package(self, ids: list[int], rest: str, reasoning: str | None) -> Message:
        start = 0 if reasoning is None else self._after_reasoning(ids)
        if start is None:
            return assistant_message(rest, reasoning=reasoning)
        after = ids[start:]
        try:
            content, attempts = self._tools.extract(after)
            return from_attempts(
                self._tokenizer.decode(content).strip(),
                reasoning,
                attempts,
                text_of=lambda first, last: self._tokenizer.decode(after[first:last]),
            )
        except Exception:
            # The parser is not ours and the text is the policy's: what breaks it is only text.
            return assistant_message(rest, reasoning=reasoning)

    def _after_reasoning(self, ids: list[int]) -> int | None:
        """The place after the token that ends reasoning. None if reasoning is not over, or if the
        policy wrote `</think>` with other tokens: nothing after it is a call then."""
        if self.reasoning_end not in ids:
            return None
        at = ids.index(self.reasoning_end)
        return None if "</think>" in self._tokenizer.decode(ids[:at]) else at + 1

    def _before_end(self, completion: Sequence[int]) -> list[int]:
        ids = list(completion)
        end = next((at for at, token in enumerate(ids) if token in self._stops), len(ids))
        return ids[:end]

    def _opened(self, prompt: Sequence[int]) -> bool:
        # The invitation to think is the very end of a prompt.
        return self._tokenizer.decode(prompt[-8:]).rstrip().endswith("<think>")


def _package_parser(name: str, tokenizer: Tokenizer) -> Any:
    if name in (HERMES, PLAIN):
        return None
    parsers = import_extra("renderers.parsers", needed_by=f"tool calls of kind {name!r}")
    if name not in parsers.TOOL_PARSERS:
        known = ", ".join(sorted([HERMES, PLAIN, *parsers.TOOL_PARSERS]))
        raise UsageError(f"there is no tool call parser {name!r}; there are {known}")
    return parsers.get_tool_parser(name, tokenizer)
