"""The published `anthropic` library, unmodified, over a real socket."""

import asyncio
import json
from collections.abc import Awaitable, Callable

import anthropic
import pytest
from anthropic.types import Message as AnthropicMessage

from holdfast.gateway.protocol.messages import (
    Answer,
    AnswerChoice,
    GenerationRequest,
    RequestRejected,
)
from holdfast.gateway.wires.anthropic.messages import (
    AnthropicMessages,
    MessageStream,
    format_count,
    format_model,
    format_models,
    parse_count_request,
)
from holdfast.records.message import FunctionCall, Message, Role, ToolCall, assistant, user
from support.gateway.wire_server import WireHost

TEXT = "The answer is 42, and naïve \u2028 ends of lines\x85 are kept.\n" * 20
CALL = ToolCall("call_1", FunctionCall("look", '{"where": "there", "how": {"far": 1.5}}'))
TOOLS = [
    {
        "name": "look",
        "description": "Looks.",
        "input_schema": {"type": "object", "properties": {"where": {"type": "string"}}},
    }
]
HELLO = {"role": "user", "content": "Hello"}

Client = anthropic.AsyncAnthropic


def answered(message: Message, finish: str = "stop", stop: str | None = None) -> Answer:
    return Answer("a1", 0, "policy", (AnswerChoice(message, finish, stop),), 20, 7, 5)


def host(answer: Callable[[GenerationRequest], Answer]) -> WireHost:
    plain = {
        "/v1/messages/count_tokens": lambda _, body: (
            200,
            format_count(len(parse_count_request(body).messages)),
        ),
        "/v1/models": lambda *_: (200, format_models(["policy", "other"])),
        "/v1/models/policy": lambda *_: (200, format_model("policy")),
    }
    return WireHost({"/v1/messages": AnthropicMessages()}, answer=answer, plain=plain)


def always(message: Message, finish: str = "stop") -> WireHost:
    return host(lambda _: answered(message, finish))


def fields(**more: object) -> dict[str, object]:
    return {"model": "policy", "max_tokens": 64, "messages": [HELLO], **more}


def blocking(served: WireHost, act: Callable[[anthropic.Anthropic], object]) -> object:
    def acted(url: str) -> object:
        with anthropic.Anthropic(base_url=url, api_key="k", max_retries=0) as client:
            return act(client)

    async def main() -> object:
        async with served as url:
            return await asyncio.to_thread(acted, url)

    return asyncio.run(main())


def waiting(served: WireHost, act: Callable[[Client], Awaitable[object]]) -> object:
    async def main() -> object:
        async with (
            served as url,
            anthropic.AsyncAnthropic(base_url=url, api_key="k", max_retries=0) as client,
        ):
            return await act(client)

    return asyncio.run(main())


def created(served: WireHost, **more: object) -> AnthropicMessage:
    result = blocking(served, lambda client: client.messages.create(**fields(**more)))  # type: ignore[call-overload]
    assert isinstance(result, AnthropicMessage)
    return result


def streamed(served: WireHost, **more: object) -> tuple[str, AnthropicMessage]:
    def act(client: anthropic.Anthropic) -> tuple[str, AnthropicMessage]:
        with client.messages.stream(**fields(**more)) as stream:  # type: ignore[arg-type]
            return "".join(stream.text_stream), stream.get_final_message()

    return blocking(served, act)  # type: ignore[return-value]


def test_an_answer_is_read_by_both_clients() -> None:
    served = always(assistant(TEXT))
    reply = created(served, system="Be brief.", metadata={"user_id": "u"})
    assert [(block.type, block.text) for block in reply.content] == [("text", TEXT)]  # type: ignore[union-attr]
    assert (reply.id, reply.model, reply.stop_reason) == ("msg_a1", "policy", "end_turn")
    assert (reply.usage.input_tokens, reply.usage.cache_read_input_tokens) == (15, 5)
    assert reply.usage.output_tokens == 7

    async def act(client: Client) -> object:
        return await client.messages.create(**fields())  # type: ignore[call-overload]

    again = waiting(always(assistant(TEXT)), act)
    assert isinstance(again, AnthropicMessage)
    assert again.to_dict() == reply.to_dict()


def test_a_stream_is_read_by_both_clients() -> None:
    text, message = streamed(always(assistant(TEXT)))
    assert text == TEXT
    whole = created(always(assistant(TEXT)))
    assert message.to_dict(exclude_none=True) == whole.to_dict(exclude_none=True)

    async def act(client: Client) -> tuple[str, AnthropicMessage]:
        async with client.messages.stream(**fields()) as stream:  # type: ignore[arg-type]
            pieces = [piece async for piece in stream.text_stream]
            return "".join(pieces), await stream.get_final_message()

    assert waiting(always(assistant(TEXT)), act) == (text, message)


def test_raw_events_come_in_their_order() -> None:
    message = Message(Role.ASSISTANT, "So.", tool_calls=(CALL,), reasoning="Hm.")

    def act(client: anthropic.Anthropic) -> list[str]:
        return [event.type for event in client.messages.create(**fields(stream=True))]  # type: ignore[call-overload]

    wire_hosts = blocking(always(message, "tool_calls"), act)
    begins, grows, ends = "content_block_start", "content_block_delta", "content_block_stop"
    thought = [begins, grows, grows, ends]  # the last one grows its signature
    block = [begins, grows, ends]
    assert wire_hosts == [
        "message_start",
        *thought,
        *block,
        *block,
        "message_delta",
        "message_stop",
    ]


@pytest.mark.parametrize("stream", [False, True])
def test_a_tool_is_called_and_its_result_goes_on(stream: bool) -> None:
    """Thinking, text and call come back as the message that was answered."""
    message = Message(Role.ASSISTANT, "Let me look.", tool_calls=(CALL,), reasoning="Hm.\n")
    replies = iter([answered(message, "tool_calls"), answered(assistant("A bird."))])
    served = host(lambda _: next(replies))

    def act(client: anthropic.Anthropic) -> AnthropicMessage:
        messages: list[object] = [HELLO]
        while True:
            reply = _reply(client, messages, stream)
            messages.append({"role": "assistant", "content": reply.content})
            uses = [block for block in reply.content if block.type == "tool_use"]
            if not uses:
                return reply
            messages.append({"role": "user", "content": [_result(use) for use in uses]})

    text = blocking(served, act)
    assert text.content[0].text == "A bird."  # type: ignore[attr-defined]
    first, second = served.asks
    assert first.tools == second.tools
    compact = json.dumps(json.loads(CALL.arguments), separators=(",", ":"))
    parsed = second.messages[1]
    assert parsed.tool_calls == (ToolCall("call_1", FunctionCall("look", compact)),)
    assert (parsed.content, parsed.reasoning) == (message.content, message.reasoning)
    assert second.messages[0] == user("Hello")
    assert second.messages[2:] == (Message(Role.TOOL, "there", tool_call_id="call_1", name="look"),)


def _reply(client: anthropic.Anthropic, messages: list[object], stream: bool) -> AnthropicMessage:
    request = fields(messages=messages, tools=TOOLS, thinking={"type": "adaptive"})
    if not stream:
        return client.messages.create(**request)  # type: ignore[call-overload, no-any-return]
    with client.messages.stream(**request) as stream_of:  # type: ignore[arg-type]
        return stream_of.get_final_message()


def _result(use: anthropic.types.ToolUseBlock) -> dict[str, object]:
    return {"type": "tool_result", "tool_use_id": use.id, "content": use.input["where"]}


def test_what_a_library_writes_of_a_block_is_accepted() -> None:
    """Some clients keep blocks as dictionaries, with every empty field in them."""
    message = Message(Role.ASSISTANT, "So.", tool_calls=(CALL,), reasoning="Hm.")
    _, text = streamed(always(message, "tool_calls"))
    dumped = [block.model_dump() for block in text.content]
    assert "citations" in dumped[1]
    assert {"caller", "toolset_name"} <= dumped[2].keys()
    served = always(assistant("Yes."))
    created(served, messages=[HELLO, {"role": "assistant", "content": dumped}, HELLO])
    assert served.asks[0].messages[1].content == "So."


@pytest.mark.parametrize("broken", ['{"where": "th', "[1]", ""])
def test_broken_arguments_are_streamed_and_come_back(broken: str) -> None:
    call = ToolCall("call_1", FunctionCall("look", broken))
    message = Message(Role.ASSISTANT, "", tool_calls=(call,))
    _, text = streamed(always(message, "length"))
    assert text.stop_reason == "max_tokens"
    assert text.content[0].input == {"INVALID_JSON": broken}  # type: ignore[union-attr]
    served = always(assistant("Yes."))
    created(served, messages=[HELLO, text.to_param(), HELLO])
    assert served.asks[0].messages[1] == message


def test_a_stop_sequence_is_told() -> None:
    served = host(lambda ask: answered(assistant("So"), stop=ask.stop[0]))
    reply = created(served, stop_sequences=["END"])
    assert (reply.stop_reason, reply.stop_sequence) == ("stop_sequence", "END")


def test_tokens_are_counted_and_models_listed() -> None:
    def act(client: anthropic.Anthropic) -> tuple[int, list[str], str]:
        counted = client.messages.count_tokens(
            model="policy",
            messages=[HELLO, HELLO],
            system="Be.",
            tools=TOOLS,  # type: ignore[list-item, arg-type]
        )
        listed = [model.id for model in client.models.list()]
        return counted.input_tokens, listed, client.models.retrieve("policy").lifecycle

    assert blocking(always(assistant("")), act) == (3, ["policy", "other"], "active")


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (400, anthropic.BadRequestError),
        (401, anthropic.AuthenticationError),
        (403, anthropic.PermissionDeniedError),
        (404, anthropic.NotFoundError),
        (409, anthropic.ConflictError),
        (413, anthropic.APIStatusError),
        (429, anthropic.RateLimitError),
        (500, anthropic.InternalServerError),
        (503, anthropic.InternalServerError),
        (529, anthropic.InternalServerError),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_refusal_is_raised_as_the_librarys_own_error(
    status: int, error: type[anthropic.APIStatusError], stream: bool
) -> None:
    def refuse(ask: GenerationRequest) -> Answer:
        raise RequestRejected(status, "not now", code="because")

    with pytest.raises(error, match="not now") as caught:
        created(host(refuse), stream=stream)
    assert caught.value.status_code == status
    assert caught.value.body["type"] == "error"  # type: ignore[index]


def test_a_parameter_that_cannot_be_done_is_a_bad_request() -> None:
    thinking = {"type": "between_tools"}
    with pytest.raises(anthropic.BadRequestError, match=r"thinking\.type: not supported"):
        created(always(assistant("")), extra_body={"thinking": thinking})
    with pytest.raises(anthropic.BadRequestError, match="container: not supported"):
        created(always(assistant("")), extra_body={"container": "c"})


def test_sampling_parameters_outside_of_the_librarys_types_arrive() -> None:
    served = always(assistant("So."))
    created(served, extra_body={"temperature": 0.5, "top_p": 0.9})
    assert (served.asks[0].temperature, served.asks[0].top_p) == (0.5, 0.9)


class _FailingStream(MessageStream):
    """A stream that had begun when its request was refused."""

    def end(self, answer: Answer) -> list[bytes]:
        return [self.error(RequestRejected(529, "too much"))]


class _Failing(AnthropicMessages):
    def stream(self, request: GenerationRequest) -> MessageStream:
        return _FailingStream()


def test_a_refusal_inside_a_stream_is_raised() -> None:
    served = WireHost({"/v1/messages": _Failing()}, answer=lambda _: answered(assistant("")))
    with pytest.raises(anthropic.APIStatusError, match="too much") as caught:
        streamed(served)
    assert caught.value.body["error"]["type"] == "overloaded_error"  # type: ignore[index]
