"""The renderer of engines that take and give messages. It makes no tokens."""

from collections.abc import Sequence

from holdfast.policy.rendering.structure import Ids, Tools
from holdfast.records.message import Message, Role


class MessagesOnly:
    """A renderer without tokens. Replies that are sampled through it cannot be trained on."""

    stop_token_ids: tuple[int, ...] = ()

    def __init__(self, name: str = "messages"):
        """`name` is the renderer's name. It may be the name of a renderer that this object replaces
        when no more rendering is needed."""
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
