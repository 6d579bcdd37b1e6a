"""The published `openai` library against OpenAI's wires, over a socket."""

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
import openai
import pytest
from pydantic import BaseModel

from holdfast.gateway.protocol.messages import Answer, GenerationRequest, RequestRejected, Wire
from holdfast.gateway.wires.openai import errors
from holdfast.gateway.wires.openai import models as openai_models
from holdfast.gateway.wires.openai.chat import ChatStream, OpenAIChat
from holdfast.gateway.wires.openai.completions import OpenAICompletions
from holdfast.records.message import FunctionCall, Message, Role, ToolCall
from support.gateway.openai_answers import ANSWER, CALL, TEXT, TOOL, answered, choice
from support.gateway.wire_server import WireHost

T = TypeVar("T")
WIRES: dict[str, Wire] = {
    "/v1/chat/completions": OpenAIChat(),
    "/v1/completions": OpenAICompletions(),
}
HI: Any = [{"role": "user", "content": "hi"}]
TOKENS = ("He", "llo", ", ", "you", "!", "<|im_end|>")
WITH_TOKENS = answered(choice("Hello, you!", tokens=TOKENS))


def models(path: str, _: bytes) -> tuple[int, bytes]:
    name = path.removeprefix("/v1/models").removeprefix("/")
    try:
        if not name:
            return 200, openai_models.format_models(["m", "org/m-2"], created=5)
        return 200, openai_models.format_model(name, ["m", "org/m-2"], created=5)
    except RequestRejected as refused:
        return refused.status, errors.format_error(refused)


def with_client(
    use: Callable[[openai.OpenAI], T],
    answer: Callable[[GenerationRequest], Answer] = lambda _: ANSWER,
) -> tuple[T, list[GenerationRequest]]:
    """What the blocking client made of it, and what was asked."""

    def blocking(url: str) -> T:
        with openai.OpenAI(base_url=f"{url}/v1", api_key="k", max_retries=0) as client:
            return use(client)

    async def run() -> tuple[T, list[GenerationRequest]]:
        host = WireHost(WIRES, answer=answer, plain={"/v1/models{name:.*}": models})
        async with host as url:
            return await asyncio.to_thread(blocking, url), host.asks

    return asyncio.run(run())


def test_an_answer_is_read() -> None:
    made, _ = with_client(lambda c: c.chat.completions.create(model="m", messages=HI))
    text, calls = made.choices
    assert text.message.content == TEXT
    assert text.message.model_extra == {"reasoning_content": "Let me think."}
    assert calls.message.content is None
    assert calls.message.tool_calls is not None
    assert calls.message.tool_calls[0].model_dump() == {
        "id": "call_1",
        "type": "function",
        "function": {"name": "weather", "arguments": CALL.arguments},
    }
    assert [item.finish_reason for item in made.choices] == ["stop", "tool_calls"]
    assert made.usage is not None
    assert made.usage.prompt_tokens_details is not None
    assert made.usage.prompt_tokens_details.cached_tokens == 8
    # What the library passed through without knowing it would show here.
    assert made.model_extra == {}


def test_a_stream_is_read_and_adds_up_to_the_answer() -> None:
    def use(client: openai.OpenAI) -> list[Any]:
        with client.chat.completions.create(
            model="m", messages=HI, stream=True, stream_options={"include_usage": True}
        ) as stream:
            return list(stream)

    chunks, (request,) = with_client(use)
    assert request.stream
    assert request.include_usage
    choices = [chunk.choices[0] for chunk in chunks if chunk.choices]
    assert "".join(item.delta.content or "" for item in choices if item.index == 0) == TEXT
    calls = [call for item in choices for call in item.delta.tool_calls or ()]
    assert [call.id for call in calls if call.id] == ["call_1"]
    assert "".join(call.function.arguments for call in calls) == CALL.arguments
    assert chunks[-1].usage.total_tokens == 50


def test_the_librarys_own_accumulation_of_a_stream_equals_the_answer() -> None:
    """Roles, texts, calls, logprobs and usage, as the library itself puts them together."""
    answer = answered(
        choice("Hello, you!", tokens=TOKENS), choice("", calls=(CALL,), tokens=TOKENS)
    )

    def use(client: openai.OpenAI) -> tuple[Any, Any]:
        request: dict[str, Any] = {"model": "m", "messages": HI, "n": 2, "logprobs": True}
        with client.chat.completions.stream(
            **request, stream_options={"include_usage": True}
        ) as stream:
            streamed = stream.get_final_completion()
        return streamed, client.chat.completions.create(**request)

    (streamed, whole), _ = with_client(use, lambda _: answer)
    assert streamed.usage == whole.usage
    for item, other in zip(streamed.choices, whole.choices, strict=True):
        assert item.logprobs == other.logprobs
        assert item.finish_reason == other.finish_reason
        assert (item.message.content or None) == other.message.content
        assert [
            (c.id, c.function.name, c.function.arguments) for c in item.message.tool_calls or ()
        ] == [(c.id, c.function.name, c.function.arguments) for c in other.message.tool_calls or ()]


class Weather(BaseModel):
    """Tells the weather."""

    city: str
    days: int = 1


def test_pydantic_tools_are_shown_and_their_calls_parsed() -> None:
    call = ToolCall("call_9", FunctionCall("Weather", '{"city": "Bern", "days": 2}'))
    tools: Any = [openai.pydantic_function_tool(Weather)]
    made, (request,) = with_client(
        lambda c: c.chat.completions.parse(model="m", messages=HI, tools=tools),
        lambda _: answered(choice("", calls=(call,))),
    )
    assert made.choices[0].message.tool_calls is not None
    parsed = made.choices[0].message.tool_calls[0].function.parsed_arguments
    assert parsed == Weather(city="Bern", days=2)
    (tool,) = request.tools
    function = tool["function"]
    assert isinstance(function, dict)
    assert function["name"] == "Weather"
    assert function["parameters"]["required"] == ["city", "days"]
    assert "strict" not in function


def test_a_turn_told_back_by_the_library_is_the_message_that_was_answered() -> None:
    """A loop as agents have it: the message object itself, and its dump, go into the next call."""

    def use(client: openai.OpenAI) -> None:
        first = client.chat.completions.create(model="m", messages=HI, tools=[TOOL])  # type: ignore[list-item]
        for message in (first.choices[1].message, first.choices[1].message.model_dump()):
            result = {"role": "tool", "tool_call_id": "call_1", "content": "rain"}
            history: Any = [*HI, message, result]
            client.chat.completions.create(model="m", messages=history)

    _, asks = with_client(use)
    for ask in asks[1:]:
        assert ask.messages == (
            Message(Role.USER, "hi"),
            ANSWER.choices[1].message,
            Message(Role.TOOL, "rain", tool_call_id="call_1"),
        )


def test_three_choices_keep_their_indices() -> None:
    answer = answered(*(choice(text) for text in "abc"))
    made, (request,) = with_client(
        lambda c: c.chat.completions.create(model="m", messages=HI, n=3), lambda _: answer
    )
    assert request.n == 3
    assert [(item.index, item.message.content) for item in made.choices] == [
        (0, "a"),
        (1, "b"),
        (2, "c"),
    ]


def test_logprobs_are_read() -> None:
    made, (request,) = with_client(
        lambda c: c.chat.completions.create(model="m", messages=HI, logprobs=True),
        lambda _: WITH_TOKENS,
    )
    assert request.logprobs
    assert made.choices[0].logprobs is not None
    contents = made.choices[0].logprobs.content or []
    assert [(content.token, content.logprob) for content in contents] == [
        (token, -0.25 * i) for i, token in enumerate(TOKENS)
    ]


@pytest.mark.parametrize(
    ("more", "param", "code"),
    [
        ({"functions": []}, "functions", "unsupported_parameter"),
        ({"tool_choice": "often", "tools": [TOOL]}, "tool_choice", "unsupported_value"),
        ({"extra_body": {"nonsense": 1}}, "nonsense", "unknown_parameter"),
        ({"temperature": 9}, "temperature", "invalid_value"),
        ({"stream": True, "top_logprobs": 2}, "top_logprobs", "unsupported_value"),
    ],
)
def test_a_refusal_is_the_librarys_bad_request(more: Any, param: str, code: str) -> None:
    def use(client: openai.OpenAI) -> openai.BadRequestError:
        with pytest.raises(openai.BadRequestError) as caught:
            client.chat.completions.create(model="m", messages=HI, **more)
        return caught.value

    error, asks = with_client(use)
    assert (error.param, error.code, error.type) == (param, code, "invalid_request_error")
    assert param in error.message
    assert asks == []


@pytest.mark.parametrize(
    ("status", "kind", "raised"),
    [
        (401, "invalid_request_error", openai.AuthenticationError),
        (404, "invalid_request_error", openai.NotFoundError),
        (429, "rate_limit_error", openai.RateLimitError),
        (503, "server_error", openai.InternalServerError),
    ],
)
def test_every_status_is_an_error_of_the_library(
    status: int, kind: str, raised: type[openai.APIStatusError]
) -> None:
    def refuse(_: GenerationRequest) -> Answer:
        raise RequestRejected(status, "not now", code="because")

    def use(client: openai.OpenAI) -> openai.APIStatusError:
        with pytest.raises(raised) as caught:
            client.completions.create(model="m", prompt="x")
        return caught.value

    error, _ = with_client(use, refuse)
    assert (error.status_code, error.type, error.code) == (status, kind, "because")
    assert "not now" in error.message


def test_a_stream_that_fails_after_it_began_raises_what_it_was_told() -> None:
    """An error of a stream is an event with the same body."""

    class FailingStream(ChatStream):
        def end(self, answer: Answer) -> list[bytes]:
            rejection = RequestRejected(503, "the engine is gone", code="gone")
            return [*super().end(answer)[:2], self.error(rejection)]

    class Failing(OpenAIChat):
        def stream(self, request: GenerationRequest) -> ChatStream:
            return FailingStream(request)

    async def run() -> openai.APIError:
        host = WireHost({"/v1/chat/completions": Failing()}, answer=lambda _: ANSWER)
        async with (
            host as url,
            openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="k", max_retries=0) as client,
        ):
            stream = await client.chat.completions.create(model="m", messages=HI, stream=True)
            await anext(stream)
            await anext(stream)
            with pytest.raises(openai.APIError) as caught:
                await anext(stream)
            return caught.value

    error = asyncio.run(run())
    assert (error.message, error.code) == ("the engine is gone", "gone")


def test_the_async_client_reads_answers_and_streams_side_by_side() -> None:
    async def run() -> tuple[Any, object]:
        host = WireHost(WIRES, answer=lambda _: ANSWER)
        async with (
            host as url,
            openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="k", max_retries=0) as client,
        ):

            async def streamed() -> str:
                text = ""
                async for run in await client.chat.completions.create(
                    model="m", messages=HI, stream=True
                ):
                    if run.choices[0].index == 0:
                        text += run.choices[0].delta.content or ""
                return text

            whole: Any
            texts: list[Any]
            whole, *texts = await asyncio.gather(
                client.chat.completions.create(model="m", messages=HI),
                *(streamed() for _ in range(4)),
            )
            assert set(texts) == {TEXT}
            return whole, texts[0]

    whole, text = asyncio.run(run())
    assert whole.choices[0].message.content == text


def test_completions_are_read_whole_and_streamed() -> None:
    def use(client: openai.OpenAI) -> tuple[Any, list[Any]]:
        whole = client.completions.create(model="m", prompt=[1, 2, 3], logprobs=0)
        with client.completions.create(
            model="m", prompt="x", logprobs=1, stream=True, stream_options={"include_usage": True}
        ) as stream:
            return whole, list(stream)

    (whole, chunks), (by_ids, by_text) = with_client(use, lambda _: WITH_TOKENS)
    assert by_ids.prompt_ids == (1, 2, 3)
    assert by_text.text == "x"
    assert whole.choices[0].text == "Hello, you!"
    logprobs = whole.choices[0].logprobs
    assert logprobs.tokens == list(TOKENS)
    assert logprobs.text_offset == [0, 2, 5, 7, 10, 11]
    choices = [chunk.choices[0] for chunk in chunks if chunk.choices]
    assert "".join(item.text for item in choices) == "Hello, you!"
    assert [t for item in choices if item.logprobs for t in item.logprobs.tokens] == list(TOKENS)
    assert [item.finish_reason for item in choices] == [None] * (len(choices) - 1) + ["stop"]
    assert chunks[-1].usage == whole.usage


def test_models_are_listed_and_told_one_by_one() -> None:
    def use(client: openai.OpenAI) -> tuple[list[str], Any, openai.NotFoundError]:
        with pytest.raises(openai.NotFoundError) as caught:
            client.models.retrieve("gpt-x")
        names = [item.id for item in client.models.list()]
        return names, client.models.retrieve("org/m-2"), caught.value

    (names, first, error), _ = with_client(use)
    assert names == ["m", "org/m-2"]
    assert (first.id, first.object, first.created, first.owned_by) == (
        "org/m-2",
        "model",
        5,
        "holdfast",
    )
    assert (error.code, error.param) == ("model_not_found", "model")


def test_the_retry_of_a_stream_has_the_same_bytes() -> None:
    request = GenerationRequest("m", (Message(Role.USER, "hi"),), stream=True)
    for wire in WIRES.values():
        copy = msgspec.json.decode(msgspec.json.encode(ANSWER), type=Answer)
        assert wire.stream(request).end(copy) == wire.stream(request).end(ANSWER)
