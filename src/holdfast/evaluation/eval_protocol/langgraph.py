"""LangGraphRolloutProcessor runs rows through a LangGraph graph, as in eval-protocol.

The graph calls its own models. So a row is recorded when the graph has finished it, and an
interrupted row starts again from the beginning.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from holdfast.evaluation.eval_protocol.row_processor import RolloutProcessor, RolloutProcessorConfig
from holdfast.evaluation.rows.row import EvaluationRow, Message
from holdfast.evaluation.rows.status import Status
from holdfast.records.errors import UsageError

Build = Callable[[RolloutProcessorConfig], Any]


class LangGraphRolloutProcessor(RolloutProcessor):
    """Runs rows through the graph that `graph_factory(config)` makes. The row's messages become the
    graph's `messages`.

    - `to_input(row)` and `apply_result(row, result)` convert other inputs and outputs.
    - `build_invoke_config(config)`, or `build_graph_kwargs(completion_params)`, returns the config
      with which the graph is invoked.
    """

    def __init__(
        self,
        *,
        graph_factory: Build,
        to_input: Callable[[EvaluationRow], Mapping[str, Any]] | None = None,
        apply_result: Callable[[EvaluationRow, Any], EvaluationRow] | None = None,
        build_graph_kwargs: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
        input_key: str = "messages",
        output_key: str = "messages",
        build_invoke_config: Callable[[RolloutProcessorConfig], dict[str, Any]] | None = None,
    ):
        self._graph_factory = graph_factory
        self._to_input = to_input or self._make_input
        self._apply_result = apply_result or self._read_messages
        self._build_graph_kwargs = build_graph_kwargs
        self._input_key = input_key
        self._output_key = output_key
        self._build_invoke_config = build_invoke_config

    def __call__(self, rows: Sequence[Any], config: Any) -> "list[asyncio.Task[Any]]":
        graph, invoke_arguments = self._graph_factory(config), self._invoke_config(config)

        async def work(row: EvaluationRow) -> EvaluationRow:
            async with config.semaphore:
                state = await graph.ainvoke(self._to_input(row), **invoke_arguments)
            done = self._apply_result(row, state)
            done.rollout_status = Status.rollout_finished()
            return done

        return [asyncio.create_task(work(row)) for row in rows]

    def _invoke_config(self, config: RolloutProcessorConfig) -> dict[str, Any]:
        if self._build_invoke_config is not None:
            return {"config": self._build_invoke_config(config)}
        if self._build_graph_kwargs is not None:
            return {"config": self._build_graph_kwargs(config.completion_params)}
        return {}

    def _make_input(self, row: EvaluationRow) -> dict[str, Any]:
        from langchain_core.messages import convert_to_messages

        messages = [message.dump_for_chat_completion_request() for message in row.messages]
        return {self._input_key: convert_to_messages(messages)}

    def _read_messages(self, row: EvaluationRow, result: Any) -> EvaluationRow:
        from langchain_core.messages import BaseMessage, convert_to_openai_messages

        state = result.get(self._output_key) if isinstance(result, Mapping) else None
        if not isinstance(state, list):
            raise UsageError(
                f"the graph's result has no list {self._output_key!r}: pass apply_result= or "
                f"output_key=; it is {result!r:.200}"
            )
        row.messages = [
            Message.model_validate(
                convert_to_openai_messages(message) if isinstance(message, BaseMessage) else message
            )
            for message in state
        ]
        return row
