"""FamilyRenderer uses the hand-written rendering of a model family in the `renderers` package.

The package's bridge returns the prompt, the completion and the following ids, and copies all of
them. It reads only the last assistant header of the prompt, which decides whether reasoning is
open. So the bridge gets only the part of the prompt from the last end of a turn on, and its cost
does not grow with the history.

Invariant: the package's result begins with exactly the ids it was given. Otherwise there is no
bridge.
"""

from collections.abc import Mapping, Sequence
from importlib import metadata
from typing import Any

from holdfast.policy.rendering.parse_tool_calls import assistant_message, from_attempts
from holdfast.policy.rendering.reasoning_effort import (
    TokenizerRenderer,
    no_argument,
    unsupported,
)
from holdfast.policy.rendering.structure import Ids, Marks, Tools, hermes_marks
from holdfast.policy.rendering.to_dicts import as_dicts, decode_arguments, quote_arguments
from holdfast.policy.rendering.tokenizer import Tokenizer, import_extra
from holdfast.records.encoding.tokens import last_of
from holdfast.records.errors import UsageError
from holdfast.records.message import Message
from holdfast.records.sampling import NO_REASONING

# These families write a call's arguments unchanged. The others parse them.
_VERBATIM = frozenset(
    (
        "qwen3",
        "qwen3-vl",
        "llama-3",
        "deepseek-v3",
        "deepseek-r1",
        "kimi-k2",
        "kimi-k2.5",
        "gpt-oss",
    )
)
_NEVER_REASON = ("llama-3", "deepseek-v3")
# Calls are JSON between tags, with the name first.
_HERMES = frozenset(("qwen3", "qwen3-vl", "prime-qwen3"))
_DEVELOPER = frozenset(("gpt-oss", "gemma4", "deepseek-v4"))
# The parser reads from the last header on. A turn may end with a token that does not stop sampling.
_ANCHORS = {"gpt-oss": "<|start|>"}
_HEADERS = {"llama-3": "<|end_header_id|>"}
_CLOSINGS = {"gemma4": "<channel|>", "hy3": "</think:opensource>", "gpt-oss": "", "inkling": ""}
"""The text that ends reasoning, for families in which it is not `</think>`. If it is "", a reply
that was cut does not need this text."""
# The text goes through a separate encoder, which treats special tokens as text.
_OWN_ENCODER = frozenset(("gpt-oss",))


class FamilyRenderer(TokenizerRenderer):
    """Renders with the `renderers` package. `keep_reasoning` keeps earlier reasoning even if the
    family's template drops it at the next user message. So the next prompt still begins with the
    sampled tokens."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        family: str,
        *,
        keep_reasoning: bool = False,
        options: Mapping[str, object] | None = None,
    ):
        super().__init__(tokenizer)
        self.family = family
        chosen = dict(options or {})
        self._options, self._keep_reasoning = chosen, keep_reasoning
        self._package = _package_renderer(tokenizer, family, chosen, keep_reasoning=keep_reasoning)
        self.stop_token_ids: tuple[int, ...] = tuple(self._package.get_stop_token_ids())
        anchor = _ANCHORS.get(family)
        self._anchors = frozenset(
            self.stop_token_ids if anchor is None else (tokenizer.convert_tokens_to_ids(anchor),)
        )
        header = _HEADERS.get(family)
        self._header = None if header is None else tokenizer.convert_tokens_to_ids(header)
        self._closing = tokenizer.encode(_CLOSINGS.get(family, "</think>"))
        digest = tokenizer.digest(repr(sorted(chosen.items())), str(keep_reasoning))
        self.name = f"renderers:{family}@{version()}+{digest}"
        self.reasons = family not in _NEVER_REASON
        """Whether the family's replies may hold reasoning."""

    def set_arguments(self, arguments: Mapping[str, object]) -> None:
        options = {**self._options, **arguments}
        try:
            self._package = _package_renderer(
                self.tokenizer, self.family, options, keep_reasoning=self._keep_reasoning
            )
        except UsageError as error:
            why = f"the family {self.family} does not take {', '.join(arguments)}"
            raise no_argument(str(error), public_reason=why) from error
        self._options = options

    def set_effort(self, effort: str) -> None:
        """Sets the effort. Some families can only switch reasoning on or off."""
        ways: list[dict[str, object]] = [{"reasoning_effort": effort}]
        if effort == NO_REASONING:
            ways.insert(0, {"enable_thinking": False})
        for way in ways:
            try:
                self._package = _package_renderer(
                    self.tokenizer,
                    self.family,
                    {**self._options, **way},
                    keep_reasoning=self._keep_reasoning,
                )
                return
            except UsageError as error:
                last = error
        raise unsupported(str(last)) from last

    def render(self, messages: Sequence[Message], tools: Tools) -> list[int]:
        try:
            ids: list[int] = self._package.render_ids(
                self._dicts(messages), tools=list(tools) or None, add_generation_prompt=True
            )
        except (ValueError, TypeError, KeyError) as error:
            raise UsageError(f"{self.name} does not render this conversation: {error}") from error
        return ids

    def bridge(
        self, prompt: Ids, completion: Ids, messages: Sequence[Message], tools: Tools
    ) -> list[int] | None:
        if not messages:
            return self._speaking_again(prompt, completion, tools)
        tail = self.tail(prompt)
        sampled = list(completion)
        bridge = self._package.bridge_to_next_turn(
            tail, sampled, self._dicts(messages), tools=list(tools) or None
        )
        if bridge is None:
            return None
        kept = tail + sampled
        # The package drops everything after an end of turn, but a stream must never lose tokens.
        return bridge.token_ids[len(kept) :] if bridge.token_ids[: len(kept)] == kept else None

    def _speaking_again(
        self, prompt: Sequence[int], completion: Sequence[int], tools: Tools
    ) -> list[int] | None:
        """Returns the tokens between two consecutive messages of the assistant. The package has
        no bridge for this, so its rendering of a short conversation shows how a turn ends and
        begins."""
        user: dict[str, object] = {"role": "user", "content": "."}
        both: list[dict[str, object]] = [user, {"role": "assistant", "content": "."}]
        try:
            turn = self._rendered(both, tools)
            before = len(self._rendered([user], tools))
            opening = self._opening(both, tools) or self._opening([user], tools)
        except (ValueError, TypeError, KeyError):
            return None
        end = max((last_of(turn, token) for token in self.stop_token_ids), default=-1)
        after, closing = ([], []) if end < before else (turn[end + 1 :], [turn[end]])
        if completion and completion[-1] in self.stop_token_ids:
            return [*after, *opening]
        thinking = self._closing if self._is_thinking(completion, prompt, tools) else []
        return [*thinking, *closing, *after, *opening]

    def _opening(self, conversation: list[dict[str, object]], tools: Tools) -> list[int]:
        """Returns the ids that the rendering adds after a conversation to open the assistant's
        turn. Returns an empty list if it adds none."""
        closed = self._rendered(conversation, tools)
        ids = self._rendered(conversation, tools, add_generation_prompt=True)
        return ids[len(closed) :] if ids[: len(closed)] == closed else []

    def _rendered(
        self, conversation: list[dict[str, object]], tools: Tools, **options: bool
    ) -> list[int]:
        ids: list[int] = self._package.render_ids(
            conversation, tools=list(tools) or None, **options
        )
        return ids

    def _is_thinking(self, completion: Sequence[int], prompt: Sequence[int], tools: Tools) -> bool:
        """Returns whether the completion ends in the middle of reasoning."""
        try:
            parsed = self._package.parse_response(
                list(completion), tools=list(tools) or None, prompt_ids=self.tail(prompt) or None
            )
        except Exception:
            return False  # The package parses text of the policy, so any error may occur.
        return not parsed.reasoning_complete

    def parse(
        self, completion: Sequence[int], *, prompt: Sequence[int] = (), tools: Tools = ()
    ) -> Message:
        ids = list(completion)
        if self._header in ids:
            # The package would take it for the end of the prompt's header, and drop the text before
            # it.
            return assistant_message(self.tokenizer.decode(self._before_end(ids)).strip())
        try:
            parsed = self._parsed(ids, prompt, tools)
            return from_attempts(
                parsed.content,
                parsed.reasoning_content,
                parsed.tool_calls,
                text_of=lambda first, last: self.tokenizer.decode(ids[first:last]),
            )
        except Exception:
            # The package parses text of the policy. Whatever raises an error there stays plain
            # text.
            end = ids[:-1] if ids and ids[-1] in self.stop_token_ids else ids
            return assistant_message(self.tokenizer.decode(end))

    def _parsed(self, ids: list[int], prompt: Sequence[int], tools: Tools) -> Any:
        arguments = {"tools": list(tools) or None, "prompt_ids": self.tail(prompt) or None}
        parsed = self._package.parse_response(ids, **arguments)
        if parsed.reasoning_complete or not self._closing:
            return parsed
        # For reasoning that was cut off, the package keeps spaces around it or drops the text
        # before it. With a closing tag it does neither.
        closed = self._package.parse_response([*self._before_end(ids), *self._closing], **arguments)
        return closed if closed.reasoning_complete else parsed

    def _before_end(self, ids: list[int]) -> list[int]:
        end = next((at for at, token in enumerate(ids) if token in self.stop_token_ids), len(ids))
        return ids[:end]

    def call_marks(self, name: str) -> Marks | None:
        return hermes_marks(name) if self.family in _HERMES else None

    def tail(self, prompt: Sequence[int]) -> list[int]:
        """Returns the part of the prompt from the last end of a turn on. The package reads no more
        of the prompt."""
        at = max((last_of(prompt, anchor) for anchor in self._anchors), default=-1)
        return list(prompt[max(at, 0) :])

    def _dicts(self, messages: Sequence[Message]) -> list[dict[str, object]]:
        return as_dicts(
            messages,
            quoted=str if self.family in _OWN_ENCODER else self.tokenizer.quoted,
            arguments=quote_arguments if self.family in _VERBATIM else decode_arguments,
            developer=self.family in _DEVELOPER,
        )


def version() -> str:
    """Returns the version of the `renderers` package. Another version may render differently."""
    return metadata.version("renderers")


def families() -> tuple[str, ...]:
    """Returns the names of the families for which the package has a hand-written rendering."""
    return tuple(sorted(set(known_models().values())))


def known_models() -> dict[str, str]:
    """Returns the family of each known model, by the model's name on a hub."""
    models: dict[str, str] = dict(_package().MODEL_RENDERER_MAP)
    return models


def _package() -> Any:
    return import_extra("renderers.base", needed_by="a model family")


def _package_renderer(
    tokenizer: Tokenizer, family: str, options: dict[str, object], *, keep_reasoning: bool
) -> Any:
    base = _package()
    configs = import_extra("renderers.configs", needed_by="a model family")
    try:
        config = configs.config_from_name(family)
        if config is None:
            raise ValueError("the family has no settings")
        if keep_reasoning:
            config = type(config)(thinking_retention="all")
        return base.create_renderer(tokenizer, config, chat_template_kwargs=options or None)
    except Exception as error:
        # any error, such as a failed assertion or download, means that the two do not fit
        raise UsageError(
            f"{tokenizer.name_or_path} cannot be rendered as {family}: {error}"
        ) from error
