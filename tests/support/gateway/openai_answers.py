"""Answers for the tests of OpenAI's wires."""

from holdfast.gateway.protocol.messages import Answer, AnswerChoice
from holdfast.records.message import FunctionCall, Message, Role, ToolCall

TOOL: dict[str, object] = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Tells the weather.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
ARGUMENTS = '{"city": "Zürich 🌧", "note": "' + "n" * 90 + '"}'
CALL = ToolCall("call_1", FunctionCall("weather", ARGUMENTS))
TEXT = 'It rains.\n\ndata: [DONE]\r\n "quoted" \u2028 🌧 ' + "and rains again, " * 12


def choice(
    text: str,
    *,
    calls: tuple[ToolCall, ...] = (),
    reasoning: str | None = None,
    tokens: tuple[str, ...] = (),
    logprobs: tuple[float, ...] | None = None,
) -> AnswerChoice:
    """A reply; its logprobs are made up unless given."""
    if logprobs is None:
        logprobs = tuple(-0.25 * i for i in range(len(tokens)))
    return AnswerChoice(
        Message(Role.ASSISTANT, text, tool_calls=calls, reasoning=reasoning),
        "tool_calls" if calls else "stop",
        tokens=tokens,
        logprobs=logprobs,
    )


def answered(*choices: AnswerChoice) -> Answer:
    return Answer("abc123", 1700000000, "m", choices, 30, 20, cached_tokens=8)


ANSWER = answered(choice(TEXT, reasoning="Let me think."), choice("", calls=(CALL,)))
"""A text with reasoning, and a tool call."""
