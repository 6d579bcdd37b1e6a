"""The renderer of engines that take messages and give messages: it makes no tokens at all."""

from collections.abc import Sequence

from holdfast.policy.rendering.structure import Ids, Tools
from holdfast.records.message import Message, Role


class MessagesOnly:
    """Nothing that is sampled through it can be trained, and it does not pretend otherwise."""

    stop_token_ids: tuple[int, ...] = ()

    def __init__(self, name: str = "messages"):
        """`name`: the name of the renderer that it replaces when nothing is rendered any more."""
        self.name = name

    def render(self, messages: Sequence[Message], tools: Tools) -> list[int]:
        return []

    def bridge(
        self, prompt: Ids, completion: Ids, messages: Sequence[Message], tools: Tools
    ) -> list[int] | None:
        return []

    def parse(
        self, completion: Sequence[int], *, prompt: Sequence[int] = (), tools: Tools = ()
    ) -> Message:
        return Message(Role.ASSISTANT, "")

    def decode(self, ids: Sequence[int], *, special: bool = True) -> str:
        return ""
