"""The simplest processors of evaluations: one generates a single reply, the other generates
nothing."""

from collections.abc import Mapping

from holdfast.evaluation.eval_protocol.row_processor import RolloutProcessor
from holdfast.evaluation.rows.completion_params import setting_of
from holdfast.records.errors import UsageError
from holdfast.records.message import Role
from holdfast.rollout.context import Rollout
from holdfast.rollout.processors.processor import Returned
from holdfast.rollout.processors.training import read_params


class SingleTurnRolloutProcessor(RolloutProcessor):
    """Generates one reply to the row's messages, with the row's tools.

    Assistant messages at the end of the row are answers of an earlier run, and are left out.
    """

    def __init__(
        self,
        *,
        drop_trailing_assistant_messages: bool = True,
        completion_params: Mapping[str, object] | None = None,
    ):
        """`completion_params` take precedence over those of the evaluation. They cannot name a
        model."""
        self.drop_trailing_assistant_messages = drop_trailing_assistant_messages
        self._params = dict(setting_of(completion_params).params)
        if elsewhere := sorted(self._params.keys() & {"model", "base_url", "api_base", "n"}):
            raise UsageError(f"{elsewhere[0]!r} belongs in the evaluation's completion_params")
        self._changes = read_params(self._params).changes

    def configured(
        self, *, rollout_processor_kwargs: Mapping[str, object] | None = None, **unsupported: object
    ) -> "SingleTurnRolloutProcessor":
        """Returns a copy with the decorator's completion params, including those in
        `extra_body`."""
        if unsupported:
            raise UsageError(f"{min(unsupported)} means nothing to SingleTurnRolloutProcessor")
        return type(self)(
            drop_trailing_assistant_messages=self.drop_trailing_assistant_messages,
            completion_params={**self._params, **(rollout_processor_kwargs or {})},
        )

    @property
    def identity(self) -> str:
        kept = str(self.drop_trailing_assistant_messages)
        return f"{kept} {sorted(self._params.items())}" if self._params else kept

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
        await t.generate(tools=t.task.tools, **self._changes)
        return None


class NoOpRolloutProcessor(RolloutProcessor):
    """Generates nothing, so that rows are scored as they are."""

    async def rollout(self, t: Rollout) -> Returned:
        return None
