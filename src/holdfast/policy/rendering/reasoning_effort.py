"""Reasoning effort: how long a model is to think, where its template has a word for it.

An engine that takes messages has a parameter for it. One that takes tokens knows only its prompt:
the renderer has to write the effort into it, or there is no such thing as effort for this model.
"""

from typing import Protocol, runtime_checkable

from holdfast.policy.rendering.messages_only import MessagesOnly
from holdfast.policy.rendering.renderer import Renderer
from holdfast.records.errors import Unsupported
from holdfast.records.sampling import NO_REASONING

MAX_LEVELS = 16
"""Renderings that are kept at hand; no template has as many levels."""


@runtime_checkable
class TakesEffort(Protocol):
    """A renderer that may know what to do with an effort."""

    def with_effort(self, effort: str) -> Renderer:
        """The same renderer, writing this effort; raises `Unsupported` where it cannot."""
        ...


def at_effort(renderer: Renderer, effort: str | None) -> Renderer:
    """The renderer that writes `effort` into its prompts; raises `Unsupported` by that name. With
    `none`, a model that never reasons is left as it is."""
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


def unsupported(why: str, *, public_reason: str = "") -> Unsupported:
    """`public_reason`: the same without paths, for agents."""
    return Unsupported(
        "reasoning_effort",
        f"reasoning_effort cannot be followed: {why}; leave it out",
        why=public_reason or why,
    )
