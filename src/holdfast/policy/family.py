"""FamilyRenderer: the hand-written rendering of a model family, from the `renderers` package.

The package's bridge returns prompt + completion + what follows, and copies all of it. What it
reads of the prompt is only the last assistant header, which decides whether reasoning is open; so
it is given the prompt from its last end of a turn on, and the cost of a bridge does not grow with
the history.

Invariant: what the package returns begins with exactly what it was given, or there is no bridge.
"""

from collections.abc import Mapping, Sequence
from importlib import metadata
from typing import Any

from holdfast.policy.conversation import as_dicts, decoded_arguments, verbatim_arguments
from holdfast.policy.tokenizer import Tokenizer, extra
from holdfast.policy.tool_calls import from_attempts, message
from holdfast.records.errors import UsageError
from holdfast.records.message import Message

Tools = Sequence[dict[str, object]]

# These write a call's arguments as they are given; the others have to take them apart.
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
_DEVELOPER = frozenset(("gpt-oss", "gemma4", "deepseek-v4"))
# The last header is what this one reads; its turns may end with a token that stops nothing.
_ANCHORS = {"gpt-oss": "<|start|>"}
# Its text goes through an encoder of its own, in which special tokens are text anyway.
_OWN_ENCODER = frozenset(("gpt-oss",))


class FamilyRenderer:
    """`keep_reasoning` keeps earlier reasoning where the family's template would drop it when a
    user speaks, so that the stream is never broken there."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        family: str,
        *,
        keep_reasoning: bool = False,
        options: Mapping[str, object] | None = None,
    ):
        self.tokenizer = tokenizer
        self.family = family
        chosen = dict(options or {})
        self._package = _package_renderer(tokenizer, family, chosen, keep_reasoning=keep_reasoning)
        self.stop_token_ids: tuple[int, ...] = tuple(self._package.get_stop_token_ids())
        anchor = _ANCHORS.get(family)
        self._anchors = frozenset(
            self.stop_token_ids if anchor is None else (tokenizer.convert_tokens_to_ids(anchor),)
        )
        digest = tokenizer.digest(repr(sorted(chosen.items())), str(keep_reasoning))
        self.name = f"renderers:{family}@{version()}+{digest}"

    def render(self, messages: Sequence[Message], tools: Tools) -> list[int]:
        try:
            ids: list[int] = self._package.render_ids(
                self._dicts(messages), tools=list(tools) or None, add_generation_prompt=True
            )
        except (ValueError, TypeError, KeyError) as error:
            raise UsageError(f"{self.name} does not render this conversation: {error}") from error
        return ids

    def bridge(
        self,
        prompt: Sequence[int],
        completion: Sequence[int],
        messages: Sequence[Message],
        tools: Tools,
    ) -> list[int] | None:
        given = self.tail(prompt)
        sampled = list(completion)
        found = self._package.bridge_to_next_turn(
            given, sampled, self._dicts(messages), tools=list(tools) or None
        )
        if found is None:
            return None
        kept = given + sampled
        # The package cuts what stands after an end of turn; a stream is never cut.
        return found.token_ids[len(kept) :] if found.token_ids[: len(kept)] == kept else None

    def parse(
        self, completion: Sequence[int], *, prompt: Sequence[int] = (), tools: Tools = ()
    ) -> Message:
        ids = list(completion)
        try:
            parsed = self._package.parse_response(
                ids, tools=list(tools) or None, prompt_ids=self.tail(prompt) or None
            )
            return from_attempts(
                parsed.content,
                parsed.reasoning_content,
                parsed.tool_calls,
                text_of=lambda first, last: self.tokenizer.decode(ids[first:last]),
            )
        except Exception:
            # The parser is not ours and the text is the policy's: what breaks it is only text.
            end = ids[:-1] if ids and ids[-1] in self.stop_token_ids else ids
            return message(self.tokenizer.decode(end))

    def decode(self, ids: Sequence[int], *, special: bool = True) -> str:
        return self.tokenizer.decode(ids, skip_special_tokens=not special)

    def tail(self, prompt: Sequence[int]) -> list[int]:
        """The prompt from its last end of a turn on: all that the package reads of it."""
        for at in range(len(prompt) - 1, -1, -1):
            if prompt[at] in self._anchors:
                return list(prompt[at:])
        return list(prompt)

    def _dicts(self, messages: Sequence[Message]) -> list[dict[str, object]]:
        return as_dicts(
            messages,
            quoted=str if self.family in _OWN_ENCODER else self.tokenizer.quoted,
            arguments=verbatim_arguments if self.family in _VERBATIM else decoded_arguments,
            developer=self.family in _DEVELOPER,
        )


def version() -> str:
    """Of the `renderers` package: another version may render otherwise."""
    return metadata.version("renderers")


def families() -> tuple[str, ...]:
    """The names of the families that the package renders by hand."""
    return tuple(sorted(set(known_models().values())))


def known_models() -> dict[str, str]:
    """Model names, as a hub has them, and the family of each."""
    models: dict[str, str] = dict(_package().MODEL_RENDERER_MAP)
    return models


def _package() -> Any:
    return extra("renderers.base", needed_by="a model family")


def _package_renderer(
    tokenizer: Tokenizer, family: str, options: dict[str, object], *, keep_reasoning: bool
) -> Any:
    base = _package()
    configs = extra("renderers.configs", needed_by="a model family")
    try:
        config = configs.config_from_name(family)
        if config is None:
            raise ValueError("the family has no settings")
        if keep_reasoning:
            config = type(config)(thinking_retention="all")
        return base.create_renderer(tokenizer, config, chat_template_kwargs=options or None)
    except Exception as error:  # assertions, download errors: all say that the two do not fit
        raise UsageError(
            f"{tokenizer.name_or_path} cannot be rendered as {family}: {error}"
        ) from error
