"""The results of steps, as a rollout gets them. They are the same live and on replay."""

from msgspec import Struct

from holdfast.records.encoding.tokens import unpack_ids, unpack_logprobs
from holdfast.records.message import Message, ToolCall
from holdfast.records.step import Generated


class Reply(Struct, frozen=True, gc=False):
    """One turn of the policy."""

    step: Generated

    @property
    def message(self) -> Message:
        return self.step.message

    @property
    def text(self) -> str:
        return self.step.message.text

    @property
    def raw_text(self) -> str:
        return self.step.raw_text

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        return self.step.message.tool_calls

    @property
    def finish_reason(self) -> str:
        return self.step.finish_reason

    @property
    def ids(self) -> list[int]:
        return unpack_ids(self.step.ids).tolist()

    @property
    def logprobs(self) -> list[float]:
        return unpack_logprobs(self.step.logprobs).tolist()


class ToolReply(Struct, frozen=True, gc=False):
    """The result of a tool call as the model sees it."""

    content: str
    error: str

    @property
    def ok(self) -> bool:
        return not self.error
