"""The published `openai` library against the responses wire, over a socket."""

import asyncio
import json
from collections.abc import Callable
from typing import Any, TypeVar

import openai
import pytest
from openai.types.responses import Response

from holdfast.gateway.protocol.messages import (
    Answer,
    AnswerChoice,
    GenerationRequest,
    RequestRejected,
)
from holdfast.gateway.wires.responses.responses import OpenAIResponses
from holdfast.records.message import FunctionCall, Message, Role, ToolCall, system, user
from support.gateway.openai_answers import TEXT, answered, choice
from support.gateway.wire_server import WireHost

T = TypeVar("T")
PATH = "/v1/responses"
TOOL: Any = {
    "type": "function",
    "name": "weather",
    "description": "Tells the weather.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    "strict": False,
}
CALLS = (
    ToolCall("call_a", FunctionCall("weather", '{"city":  "Zürich 🌧"}')),
    ToolCall("call_b", FunctionCall("weather", '{"city": "Oslo"}')),
)
ASKS_TOOLS = Message(Role.ASSISTANT, "Let me look.", CALLS, reasoning="Two cities. " * 9)
SAYS = Message(Role.ASSISTANT, TEXT, reasoning="Now I know.")


def agent_answer(ask: GenerationRequest) -> Answer:
    """Asks for tools first, and says something once there is a result."""
    has_results = ask.messages[-1].role is Role.TOOL
    choice = AnswerChoice(SAYS, "stop") if has_results else AnswerChoice(ASKS_TOOLS, "tool_calls")
    return Answer(f"a{len(ask.messages)}", 1700000000, ask.model, (choice,), 30, 20)


def says(ask: GenerationRequest) -> Answer:
    return answered(AnswerChoice(SAYS, "stop"))


def with_client(
    use: Callable[[openai.OpenAI], T], answer: Callable[[GenerationRequest], Answer] = says
) -> tuple[T, WireHost]:
    """What the blocking client made of it, and the host that heard it."""

    def blocking(url: str) -> T:
        with openai.OpenAI(base_url=f"{url}/v1", api_key="k", max_retries=0) as client:
            return use(client)

    async def run() -> tuple[T, WireHost]:
        host = WireHost({PATH: OpenAIResponses()}, answer=answer)
        async with host as url:
            return await asyncio.to_thread(blocking, url), host

    return asyncio.run(run())


def test_an_answer_is_read() -> None:
    made, _ = with_client(lambda c: c.responses.create(model="m", input="hi"))
    assert (made.output_text, made.status, made.model) == (TEXT, "completed", "m")
    assert [item.type for item in made.output] == ["reasoning", "message"]
    assert made.usage is not None
    assert (made.usage.input_tokens, made.usage.total_tokens) == (30, 50)
    assert made.usage.input_tokens_details.cached_tokens == 8


def test_the_answer_holds_what_the_librarys_models_want() -> None:
    """The library itself reads leniently; its models say what has to be there."""
    made, _ = with_client(
        lambda c: c.responses.with_raw_response.create(
            model="m", input="hi", instructions="s", tools=[TOOL], temperature=1.5
        ),
        agent_answer,
    )
    read = Response.model_validate_json(made.text, strict=True)
    assert (read.instructions, read.temperature) == ("s", 1.5)
    assert read.tools[0].type == "function"
    assert read.tools[0].name == "weather"
    assert read.to_dict(mode="json") == json.loads(made.text)


def test_a_stream_is_read_event_by_event() -> None:
    def use(client: openai.OpenAI) -> list[Any]:
        return list(client.responses.create(model="m", input="hi", tools=[TOOL], stream=True))

    events, host = with_client(use, agent_answer)
    assert host.asks[0].stream
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert [events[0].type, events[-1].type] == ["response.created", "response.completed"]
    arguments = [event for event in events if event.type == "response.function_call_arguments.done"]
    assert [argument.arguments for argument in arguments] == [call.arguments for call in CALLS]
    reasoning = [event.delta for event in events if event.type == "response.reasoning_text.delta"]
    assert "".join(reasoning) == ASKS_TOOLS.reasoning
    assert events[-1].response.output_text == "Let me look."


def test_the_librarys_own_accumulation_gives_the_same_response() -> None:
    def use(client: openai.OpenAI) -> tuple[str, Response, Response]:
        with client.responses.stream(model="m", input="hi", tools=[TOOL]) as stream:
            text = "".join(
                item.delta for item in stream if item.type == "response.output_text.delta"
            )
            streamed = stream.get_final_response()
        return text, streamed, client.responses.create(model="m", input="hi", tools=[TOOL])

    (text, streamed, whole), _ = with_client(use, agent_answer)
    assert text == "Let me look."
    message = streamed.to_dict()
    for item in message["output"]:
        item.pop("parsed_arguments", None)
        for part in item.get("content", ()):
            part.pop("parsed", None)
    assert message == whole.to_dict()


def converse(client: openai.OpenAI, *, stream: bool) -> Response:
    """An agent's loop as the library's documentation has it: what came back is sent back."""
    sent: list[Any] = [{"role": "user", "content": "How is it?"}]
    for _ in range(3):
        made = _respond(client, sent, stream=stream)
        sent += made.output
        calls = [item for item in made.output if item.type == "function_call"]
        if not calls:
            return made
        for call in calls:
            result = f"rain in {json.loads(call.arguments)['city']}"
            sent.append({"type": "function_call_output", "call_id": call.call_id, "output": result})
    raise AssertionError("the conversation did not end")


def _respond(client: openai.OpenAI, sent: list[Any], *, stream: bool) -> Response:
    request: Any = {
        "model": "m",
        "input": sent,
        "instructions": "s",
        "tools": [TOOL],
        "store": False,
    }
    if not stream:
        return client.responses.create(**request)
    with client.responses.stream(**request) as events:
        return events.get_final_response()


@pytest.mark.parametrize("stream", [False, True])
def test_a_loop_with_tools_sends_back_the_very_message_that_it_was_told(stream: bool) -> None:
    made, host = with_client(lambda c: converse(c, stream=stream), agent_answer)
    assert made.output_text == TEXT
    results = [("call_a", "rain in Zürich 🌧"), ("call_b", "rain in Oslo")]
    assert host.asks[1].messages == (
        system("s"),
        user("How is it?"),
        ASKS_TOOLS,
        *(Message(Role.TOOL, text, tool_call_id=call) for call, text in results),
    )


@pytest.mark.parametrize("stream", [False, True])
def test_the_asynchronous_client_reads_the_same(stream: bool) -> None:
    async def run() -> tuple[Response, list[GenerationRequest]]:
        host = WireHost({PATH: OpenAIResponses()}, answer=agent_answer)
        async with (
            host as url,
            openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="k", max_retries=0) as client,
        ):
            if not stream:
                return await client.responses.create(model="m", input="hi"), host.asks
            async with client.responses.stream(model="m", input="hi") as events:
                return await events.get_final_response(), host.asks

    made, asks = asyncio.run(run())
    assert made.output_text == "Let me look."
    assert [item.call_id for item in made.output if item.type == "function_call"] == [
        "call_a",
        "call_b",
    ]
    assert asks[0].stream is stream


def test_an_answer_that_was_cut_ends_its_stream_incomplete() -> None:
    def cut(ask: GenerationRequest) -> Answer:
        return answered(AnswerChoice(SAYS, "length"))

    def use(client: openai.OpenAI) -> Any:
        return list(client.responses.create(model="m", input="hi", stream=True))[-1]

    last, _ = with_client(use, cut)
    assert last.type == "response.incomplete"
    assert last.response.incomplete_details.reason == "max_output_tokens"


def test_logprobs_are_read_where_they_are_asked_for() -> None:
    tokens = ("He", "llo", "!", "<|im_end|>")
    made, host = with_client(
        lambda c: c.responses.create(
            model="m", input="hi", include=["message.output_text.logprobs"]
        ),
        lambda _: answered(choice("Hello!", tokens=tokens)),
    )
    assert host.asks[0].logprobs
    (item,) = made.output
    assert item.type == "message"
    assert item.content[0].type == "output_text"
    logprobs = item.content[0].logprobs
    assert logprobs is not None
    assert [(logprob.token, logprob.logprob) for logprob in logprobs] == [
        ("He", 0.0),
        ("llo", -0.25),
        ("!", -0.5),
    ]


def test_refusals_are_the_librarys_exceptions() -> None:
    def use(client: openai.OpenAI) -> openai.BadRequestError:
        with pytest.raises(openai.BadRequestError) as caught:
            client.responses.create(model="m", input="hi", previous_response_id="resp_1")
        return caught.value

    error, host = with_client(use)
    assert (error.param, error.code) == ("previous_response_id", "previous_response_not_found")
    assert error.type == "invalid_request_error"
    assert "whole conversation" in str(error)
    assert not host.asks


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (401, openai.AuthenticationError),
        (404, openai.NotFoundError),
        (409, openai.ConflictError),
        (429, openai.RateLimitError),
        (503, openai.InternalServerError),
    ],
)
def test_other_refusals_too(status: int, kind: type[openai.APIStatusError]) -> None:
    def no(ask: GenerationRequest) -> Answer:
        raise RequestRejected(status, "no", code="because")

    def use(client: openai.OpenAI) -> openai.APIStatusError:
        with pytest.raises(kind) as caught:
            client.responses.create(model="m", input="hi", stream=True)
        return caught.value

    error, _ = with_client(use, no)
    assert error.code == "because"
