"""Processors that evaluations have beside those of `holdfast`."""

from holdfast.policy.policy import Completion, Request
from holdfast.records.errors import UsageError
from holdfast.records.message import Role
from holdfast.rollout.context import Rollout
from holdfast.rollout.processor import Returned, RolloutProcessor


class SingleTurnRolloutProcessor(RolloutProcessor):
    """The row's messages and tools, one reply.

    What an assistant said at the end of them is the answer of an earlier run, and is left out.
    """

    def __init__(self, *, drop_trailing_assistant_messages: bool = True):
        self.drop_trailing_assistant_messages = drop_trailing_assistant_messages

    @property
    def identity(self) -> str:
        return str(self.drop_trailing_assistant_messages)

    async def rollout(self, t: Rollout) -> Returned:
        messages = t.task.messages
        while (
            self.drop_trailing_assistant_messages
            and messages
            and messages[-1].role is Role.ASSISTANT
        ):
            messages = messages[:-1]
        if not messages:
            raise UsageError(f"row {t.task.id!r} has no message to answer")
        t.add(*messages)
        await t.generate(tools=t.task.tools)
        return None


class NoOpRolloutProcessor(RolloutProcessor):
    """Generates nothing: rows are judged as they are."""

    async def rollout(self, t: Rollout) -> Returned:
        return None


class NoPolicy:
    """Where nothing is generated, nothing is asked."""

    model = ""

    async def check(self) -> None:
        return None

    async def ready(self) -> None:
        return None

    @property
    def seconds_down(self) -> float:
        return 0.0

    async def sample(self, request: Request) -> Completion:
        raise UsageError("this evaluation has no policy: its processor was to generate nothing")

    async def aclose(self) -> None:
        return None
