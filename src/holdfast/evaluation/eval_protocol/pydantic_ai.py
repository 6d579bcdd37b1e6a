"""PydanticAgentRolloutProcessor runs rows through a pydantic-ai agent, as in eval-protocol.

The agent calls its own model. So a row is recorded when the agent has finished it, and an
interrupted row starts again from the beginning.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.evaluation.eval_protocol.row_processor import RolloutProcessor, RolloutProcessorConfig
from holdfast.evaluation.rows.row import EvaluationRow, Message
from holdfast.records.errors import UsageError

if TYPE_CHECKING:
    from pydantic_ai import Agent
    from pydantic_ai.messages import ModelMessage
    from pydantic_ai.usage import UsageLimits

Fields = dict[str, Any]


class PydanticAgentRolloutProcessor(RolloutProcessor):
    """Runs rows through the agent that `agent_factory(config)` makes. The row's messages are the
    agent's history.

    `usage_limits` can also be given in `rollout_processor_kwargs`.
    """

    def __init__(
        self,
        agent_factory: "Callable[[RolloutProcessorConfig], Agent[Any, Any]]",
        usage_limits: "UsageLimits | None" = None,
    ):
        self._agent_factory = agent_factory
        self._usage_limits = usage_limits

    def __call__(self, rows: Sequence[Any], config: Any) -> "list[asyncio.Task[Any]]":
        agent = self._agent_factory(config)
        limits = config.kwargs.get("usage_limits", self._usage_limits)

        async def work(row: EvaluationRow) -> EvaluationRow:
            async with config.semaphore:
                history = [_to_agent_message(message) for message in row.messages]
                done = await agent.run(message_history=history, usage_limits=limits)
            row.tools = _tools_of(agent) or row.tools
            row.messages = [
                Message(**message)
                for part in done.all_messages()
                for message in _to_chat_messages(part)
            ]
            return row

        return [asyncio.create_task(work(row)) for row in rows]


# --- chat messages to the agent's, and back


def _to_agent_message(message: Message) -> "ModelMessage":
    from pydantic_ai import messages

    match message.role:
        case "system":
            return messages.ModelRequest(parts=[messages.SystemPromptPart(content=message.text)])
        case "user":
            return messages.ModelRequest(parts=[messages.UserPromptPart(content=message.text)])
        case "tool":
            part = messages.ToolReturnPart(
                tool_name=message.name or "",
                content=message.text,
                tool_call_id=message.tool_call_id or "",
            )
            return messages.ModelRequest(parts=[part])
        case "assistant":
            calls = [
                messages.ToolCallPart(
                    tool_name=call.function.name,
                    args=call.function.arguments,
                    tool_call_id=call.id,
                )
                for call in message.tool_calls or ()
            ]
            text = [messages.TextPart(content=message.text)] if message.text else []
            return messages.ModelResponse(parts=[*text, *calls])
    raise UsageError(f"a pydantic-ai agent takes no message of role {message.role!r}")


def _to_chat_messages(message: "ModelMessage") -> Iterator[Fields]:
    if message.kind == "response":
        yield _reply_fields(message.parts)
        return
    for part in message.parts:
        match part.part_kind:
            case "system-prompt":
                yield {"role": "system", "content": part.content}
            case "user-prompt":
                yield {"role": "user", "content": _text(part.content)}
            case "tool-return":
                yield _result_fields(part, _text(part.content))
            case "retry-prompt" if part.tool_name:
                yield _result_fields(part, part.model_response())
            case "retry-prompt":
                yield {"role": "user", "content": part.model_response()}


def _reply_fields(parts: Sequence[Any]) -> Fields:
    text = "".join(part.content for part in parts if part.part_kind == "text")
    thought = "".join(part.content for part in parts if part.part_kind == "thinking")
    calls = [
        {
            "id": part.tool_call_id,
            "type": "function",
            "function": {"name": part.tool_name, "arguments": part.args_as_json_str()},
        }
        for part in parts
        if part.part_kind == "tool-call"
    ]
    fields: Fields = {"role": "assistant", "content": text or (None if calls else "")}
    if thought:
        fields["reasoning_content"] = thought
    return fields | ({"tool_calls": calls} if calls else {})


def _result_fields(part: Any, text: str) -> Fields:
    return {
        "role": "tool",
        "content": text,
        "name": part.tool_name,
        "tool_call_id": part.tool_call_id,
    }


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    if isinstance(content, Sequence) and all(isinstance(item, str) for item in content):
        return "".join(content)
    return msgspec.json.encode(content, enc_hook=str).decode()


def _tools_of(agent: "Agent[Any, Any]") -> list[Fields]:
    """Returns the function tools of the agent."""
    from pydantic_ai.toolsets import FunctionToolset

    return [
        {
            "type": "function",
            "function": {
                "name": tool.name,
                "parameters": tool.function_schema.json_schema,
                **({"description": tool.description} if tool.description else {}),
            },
        }
        for toolset in agent.toolsets
        if isinstance(toolset, FunctionToolset)
        for tool in toolset.tools.values()
    ]
