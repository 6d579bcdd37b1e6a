"""Reasoning effort, which says how long a model should think, and other arguments of a chat
template.

An engine that takes messages has parameters for them. An engine that takes tokens sees only the
prompt. So the renderer has to write them into the prompt. If it cannot, they are not supported.
"""

import copy
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Protocol, Self, runtime_checkable

import msgspec

from holdfast.policy.rendering.messages_only import MessagesOnly
from holdfast.policy.rendering.renderer import Renderer
from holdfast.policy.rendering.tokenizer import Tokenizer
from holdfast.records.errors import Unsupported
from holdfast.records.sampling import NO_REASONING, Sampling

MAX_LEVELS = 16
"""The number of variants that are cached. No template has as many levels."""


@runtime_checkable
class TakesEffort(Protocol):
    """A renderer that may be able to write a reasoning effort into prompts."""

    def with_effort(self, effort: str) -> Renderer:
        """Returns the same renderer with this effort. Raises `Unsupported` if it cannot write the
        effort."""
        ...


class TokenizerRenderer(ABC):
    """The common base of all renderers with a tokenizer."""

    def __init__(self, tokenizer: Tokenizer):
        self.tokenizer = tokenizer
        self._variants: dict[tuple[str, str], Self] = {}
        """Variants of this renderer, by the name and value of the setting."""

    def with_effort(self, effort: str) -> Self:
        return self._variant("effort", effort)

    def with_arguments(self, arguments: str) -> Self:
        return self._variant("arguments", arguments)

    def _variant(self, name: str, value: str) -> Self:
        if (known := self._variants.get((name, value))) is not None:
            return known
        other = copy.copy(self)
        vars(other).update(_variants={})  # The variants of this renderer have other arguments.
        if name == "effort":
            other.set_effort(value)
        else:
            other.set_arguments(msgspec.json.decode(value))
        if len(self._variants) < MAX_LEVELS:
            self._variants[name, value] = other
        return other

    @abstractmethod
    def set_effort(self, effort: str) -> None:
        """Sets the effort of this copy. Raises `Unsupported` if the renderer cannot write the
        effort."""

    @abstractmethod
    def set_arguments(self, arguments: Mapping[str, object]) -> None:
        """Sets arguments of the chat template in this copy. Raises `Unsupported` if the renderer
        cannot write them."""

    def decode(self, ids: Sequence[int], *, special: bool = True) -> str:
        return self.tokenizer.decode(ids, skip_special_tokens=not special)

    def encode(self, text: str, *, whole: bool) -> list[int]:
        return self.tokenizer.encode_whole(text) if whole else self.tokenizer.encode(text)


def at_effort(renderer: Renderer, effort: str | None) -> Renderer:
    """Returns the renderer that writes `effort` into its prompts. Raises `Unsupported` if it cannot
    write the effort. For the effort `none`, a model that never reasons keeps its renderer."""
    if effort is None or isinstance(renderer, MessagesOnly):
        return renderer
    try:
        if not isinstance(renderer, TakesEffort):
            raise unsupported(f"the renderer {renderer.name!r} has no words for it")
        return renderer.with_effort(effort)
    except Unsupported:
        if effort == NO_REASONING and getattr(renderer, "reasons", True) is False:
            return renderer
        raise


@runtime_checkable
class TakesArguments(Protocol):
    """A renderer that may have a chat template with arguments."""

    def with_arguments(self, arguments: str) -> Renderer:
        """Returns the same renderer with these arguments, a JSON object. Raises `Unsupported` if it
        cannot write them."""
        ...


def renderer_at(renderer: Renderer, sampling: Sampling) -> Renderer:
    """Returns the renderer that writes this sampling's effort and template arguments into its
    prompts. Raises `Unsupported` if it cannot write them."""
    if sampling.chat_template_kwargs and not isinstance(renderer, MessagesOnly):
        if not isinstance(renderer, TakesArguments):
            raise no_argument(f"the renderer {renderer.name!r} has no chat template")
        renderer = renderer.with_arguments(sampling.chat_template_kwargs)
    return at_effort(renderer, sampling.reasoning_effort)


def no_argument(why: str, *, public_reason: str = "") -> Unsupported:
    """Returns the error of an unsupported template argument. `public_reason` is the reason without
    paths, for agents."""
    return unsupported(why, public_reason=public_reason, name="chat_template_kwargs")


def unsupported(
    why: str, *, public_reason: str = "", name: str = "reasoning_effort"
) -> Unsupported:
    """Returns the error of an unsupported parameter. `public_reason` is the reason without paths,
    for agents."""
    message = f"{name} cannot be followed: {why}; leave it out"
    return Unsupported(name, message, why=public_reason or why)
