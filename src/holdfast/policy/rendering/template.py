"""TemplateRenderer renders for any model that has a chat template.

A template can only render a whole conversation. So a short conversation, the stand-in, is rendered
in its place to find the bridge. The stand-in's assistant message has the same parts as the sampled
completion (reasoning, text, tool calls), and the new messages follow it. The rendered text after
the assistant's message is the bridge.

The bridge is used only if the stand-in proves that the template appends. The assistant's message
and the prompt before it must be rendered in the same way with and without the new messages.
Otherwise there is no bridge, and the caller renders the whole conversation again.

Invariant: sampled ids are never encoded again, and a bridge costs the same in turn 2 and 200.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.policy.rendering.jinja import ChatTemplate, template_errors
from holdfast.policy.rendering.parse_tool_calls import (
    assistant_message,
    from_attempts,
    parse_hermes,
    split_reasoning,
)
from holdfast.policy.rendering.reasoning_effort import (
    TokenizerRenderer,
    no_argument,
    unsupported,
)
from holdfast.policy.rendering.structure import Ids, Marks, Tools, hermes_marks
from holdfast.policy.rendering.template_probe import StandIn, TemplateShape
from holdfast.policy.rendering.to_dicts import as_dicts, decode_arguments
from holdfast.policy.rendering.tokenizer import Tokenizer, import_extra
from holdfast.records.encoding.tokens import last_of
from holdfast.records.errors import UsageError
from holdfast.records.message import Message, Role
from holdfast.records.sampling import NO_REASONING

HERMES, PLAIN = "hermes", "none"
_DETECTED = (
    ("<arg_key>", "glm"),
    ("<function=", "qwen3.5"),
    ("<｜tool▁calls▁begin｜>", "deepseek-v3"),
    ("<tool_call>", HERMES),
)


class CompletionParser:
    """Turns sampled ids into a message, by the markup that a chat template mentions. Any sampled
    ids give a message. Text without markup, or with broken markup, is the message's text."""

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
        """Whether the template separates reasoning from text."""
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
        """Returns whether the completion ends in the middle of reasoning."""
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
            # The package parses text of the policy. Whatever raises an error there stays plain
            # text.
            return assistant_message(rest, reasoning=reasoning)

    def _after_reasoning(self, ids: list[int]) -> int | None:
        """Returns the index after the token that ends reasoning. Returns None if reasoning is not
        over, or if the policy wrote `</think>` with other tokens. In both cases no call follows."""
        if self.reasoning_end not in ids:
            return None
        at = ids.index(self.reasoning_end)
        return None if "</think>" in self._tokenizer.decode(ids[:at]) else at + 1

    def _before_end(self, completion: Sequence[int]) -> list[int]:
        ids = list(completion)
        end = next((at for at, token in enumerate(ids) if token in self._stops), len(ids))
        return ids[:end]

    def _opened(self, prompt: Sequence[int]) -> bool:
        # The opening tag of reasoning is at the very end of a prompt.
        return self._tokenizer.decode(prompt[-8:]).rstrip().endswith("<think>")


def _package_parser(name: str, tokenizer: Tokenizer) -> Any:
    if name in (HERMES, PLAIN):
        return None
    parsers = import_extra("renderers.parsers", needed_by=f"tool calls of kind {name!r}")
    if name not in parsers.TOOL_PARSERS:
        known = ", ".join(sorted([HERMES, PLAIN, *parsers.TOOL_PARSERS]))
        raise UsageError(f"there is no tool call parser {name!r}; there are {known}")
    return parsers.get_tool_parser(name, tokenizer)


_NAME = re.compile(r"[\w.:/-]{1,128}")


def _variables(effort: str) -> dict[str, object]:
    """Returns the template's variables for an effort. Some templates can only switch reasoning on
    or off."""
    variables: dict[str, object] = {"reasoning_effort": effort}
    return variables | {"enable_thinking": False} if effort == NO_REASONING else variables


class TemplateRenderer(TokenizerRenderer):
    """Renders with a tokenizer's own chat template, and parses by the markup that the template
    mentions."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        template: ChatTemplate,
        *,
        parser: str | None = None,
        options: Mapping[str, object] | None = None,
    ):
        super().__init__(tokenizer)
        self._template = template
        self._stand_in = StandIn(template, tokenizer)
        end = self._stand_in.end
        ids = (*((end,) if end is not None else ()), *tokenizer.stop_token_ids())
        self.stop_token_ids: tuple[int, ...] = tuple(dict.fromkeys(ids))
        self._parser = CompletionParser(
            tokenizer, template.source, tool_parser=parser, stops=self.stop_token_ids
        )
        self.shows_tools = "tools" in template.source
        """Whether the template shows the model its tools."""
        self._developer = "developer" in template.source
        chosen = repr(sorted((options or {}).items()))
        digest = tokenizer.digest(template.text, chosen, self._parser.name)
        self.name = f"template:{self._parser.name}+{digest}"
        self.reasons = self._parser.reasons
        """Whether the model's replies may hold reasoning."""

    def set_arguments(self, arguments: Mapping[str, object]) -> None:
        for name in arguments:
            if not self._template.reads(name):
                raise no_argument(
                    f"the chat template of {self.tokenizer.name_or_path} never reads {name!r}",
                    public_reason=f"its chat template never reads {name!r}",
                )
        self._write(arguments)

    def _write(self, variables: Mapping[str, object]) -> None:
        self._template = self._template.with_variables(**variables)
        self._stand_in = StandIn(self._template, self.tokenizer)

    def set_effort(self, effort: str) -> None:
        variables = {
            name: value for name, value in _variables(effort).items() if self._template.reads(name)
        }
        if not variables:
            raise unsupported(
                f"the chat template of {self.tokenizer.name_or_path} never reads reasoning_effort",
                public_reason="its chat template never reads it",
            )
        self._write(variables)

    def render(self, messages: Sequence[Message], tools: Tools) -> list[int]:
        try:
            text = self._template.render(self._dicts(messages), tools, opening=True)
        except template_errors() as error:
            raise UsageError(
                f"the chat template of {self.tokenizer.name_or_path} does not render this "
                f"conversation: {error}"
            ) from error
        return self.tokenizer.encode(text)

    def bridge(
        self, prompt: Ids, completion: Ids, messages: Sequence[Message], tools: Tools
    ) -> list[int] | None:
        if any(message.role is Role.ASSISTANT for message in messages):
            return None
        ended = bool(completion) and completion[-1] in self.stop_token_ids
        thinking = self._parser.is_thinking(completion, prompt)
        if not messages:
            following = self._stand_in.speaking_again(tools)
        elif thinking and ended:
            # The end token is inside the reasoning, which nothing can close any more.
            return None
        else:
            following = self._following(prompt, completion, messages, tools)
        if following is None:
            return None
        return following if ended else [*self._closing(thinking=thinking), *following]

    def parse(
        self, completion: Sequence[int], *, prompt: Sequence[int] = (), tools: Tools = ()
    ) -> Message:
        return self._parser.parse(completion, prompt=prompt)

    def call_marks(self, name: str) -> Marks | None:
        return hermes_marks(name) if self._parser.name == HERMES else None

    def _closing(self, *, thinking: bool) -> list[int]:
        """Returns the ids that end a turn, for a completion that was cut by its length and so lacks
        them."""
        return [*(self.tokenizer.encode("</think>") if thinking else ()), *self._stand_in.closing]

    def _following(
        self, prompt: Ids, completion: Ids, messages: Sequence[Message], tools: Tools
    ) -> list[int] | None:
        reply = self.parse(completion, prompt=prompt, tools=tools)
        new = self._dicts(messages)
        # A template looks tools up by name, and would not find a name that looks like markup.
        names = (call.name for call in reply.tool_calls)
        calls = tuple(name if _NAME.fullmatch(name) else "tool" for name in names)
        thought = self._parser.reasons
        shape = TemplateShape(
            reasoning=thought, content=bool(reply.content) or not calls, calls=calls
        )
        numbers = self._stand_in.following(shape, new, tools)
        if numbers is not None or not thought or reply.reasoning or self._may_reason(prompt):
            return numbers
        # Here the template drops earlier reasoning, but there is none.
        plain = TemplateShape(reasoning=False, content=shape.content, calls=calls)
        return self._stand_in.following(plain, new, tools)

    def _may_reason(self, prompt: Sequence[int]) -> bool:
        end = self._parser.reasoning_end
        return end is None or last_of(prompt, end) >= 0

    def _dicts(self, messages: Sequence[Message]) -> list[dict[str, object]]:
        return as_dicts(
            messages,
            quoted=self.tokenizer.quoted,
            arguments=decode_arguments,
            developer=self._developer,
        )
