"""Renderers for tests."""

from holdfast.policy.rendering.renderer import ByteRenderer


class BeginsEmpty(ByteRenderer):
    """For rollouts in which nothing is said before the model speaks."""

    begins_empty = True


class Thinking(ByteRenderer):
    """Bytes that begin with how long to think."""

    def __init__(self, effort: str = ""):
        self._effort = effort

    def with_effort(self, effort: str) -> "Thinking":
        return Thinking(effort)

    def render(self, messages, tools):
        return [*self._effort.encode(), *super().render(messages, tools)]
