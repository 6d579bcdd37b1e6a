"""Renderers for tests."""

from holdfast.policy.rendering.renderer import ByteRenderer


class Thinking(ByteRenderer):
    """Bytes that begin with how long to think."""

    def __init__(self, effort: str = ""):
        self._effort = effort

    def with_effort(self, effort: str) -> "Thinking":
        return Thinking(effort)

    def render(self, messages, tools):
        return [*self._effort.encode(), *super().render(messages, tools)]
