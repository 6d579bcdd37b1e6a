"""OpenAI's responses, `/v1/responses`.

A response is one JSON object, or a stream of named events that ends with the same object. There is
no `[DONE]`. Both depend only on the request and the answer, so an answer that is sent again has the
same bytes. Their ids are the ids of the record, so a reference to a response, or to one of its
items, means the recorded one. Parameters are treated like those of chat completions (see
`openai.parameters`).
"""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from holdfast.gateway.protocol.messages import (
    Answer,
    GenerationRequest,
    RequestLookup,
)
from holdfast.gateway.wires.altering import AlteringFields
from holdfast.gateway.wires.openai import errors, messages
from holdfast.gateway.wires.openai.chat import OpenAIWire
from holdfast.gateway.wires.openai.errors import (
    convert,
    format_value,
    invalid,
    unsupported,
    unsupported_value,
)
from holdfast.gateway.wires.openai.messages import parse_tool_choice
from holdfast.gateway.wires.openai.parameters import (
    MAX_TOKENS,
    Count,
    Effort,
    Text,
    TextFormat,
    neutral,
    parse_format,
    reject_unless_neutral,
)
from holdfast.gateway.wires.responses import items
from holdfast.gateway.wires.responses.items import ONLY_OWN, WHOLE_INPUT
from holdfast.gateway.wires.responses.output import (
    ResponseStream,
    finished_response,
    items_of,
    started_response,
)
from holdfast.records.message import Message, system


class OpenAIResponses(OpenAIWire):
    """The wire of `/v1/responses`."""

    def parse(self, body: bytes, known: RequestLookup | None = None) -> GenerationRequest:
        return parse_request(body, known)

    def format_answer(self, request: GenerationRequest, answer: Answer) -> bytes:
        return msgspec.json.encode(
            finished_response(started_response(request, answer), answer, items_of(answer))
        )

    def stream(self, request: GenerationRequest) -> ResponseStream:
        return ResponseStream(request)


_LOGPROBS = "message.output_text.logprobs"

Includable = Literal[
    "message.output_text.logprobs",
    # Nothing is encrypted here. The other values belong to rejected tools and inputs.
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "message.input_image.image_url",
    "reasoning.encrypted_content",
    "web_search_call.action.sources",
    "web_search_call.results",
]


class _Text(Struct, forbid_unknown_fields=True):
    format: TextFormat | None = None
    verbosity: object = neutral(
        "medium", why="how much the model says is for the instructions to say."
    )


class _Reasoning(Struct, forbid_unknown_fields=True):
    # Reasoning is always sent whole, whatever summary the client requests.
    summary: object = None
    generate_summary: object = None
    effort: Effort | None = None
    context: object = neutral("auto", why="send the reasoning that the model is to see.")
    mode: object = neutral(
        "standard", why="how the model reasons is the policy's setting; leave it out."
    )


class _CacheOptions(Struct):
    prewarm: bool = False


class _Body(AlteringFields, kw_only=True, frozen=True, forbid_unknown_fields=True):
    model: Text
    input: str | list[dict[str, object]]
    instructions: str | None = None
    previous_response_id: str | None = None
    max_output_tokens: Count | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=MAX_TOKENS)] | None = None
    stream: bool | None = None
    tools: list[dict[str, object]] | None = None
    tool_choice: str | dict[str, object] | None = None
    parallel_tool_calls: bool | None = None
    include: list[Includable] | None = None
    text: _Text | None = None
    reasoning: _Reasoning | None = None
    prompt_cache_options: _CacheOptions | None = None

    # For the client's own records.
    client_metadata: object = None
    max_tool_calls: object = None
    """Counts the calls of built-in tools, of which there are none."""
    metadata: object = None
    prompt_cache_key: object = None
    prompt_cache_retention: object = None
    safety_identifier: object = None
    service_tier: object = None
    store: object = None
    """Ignored, because the answer is always in the record, and later requests can refer to it."""
    stream_options: object = None
    user: object = None

    # Accepted only with values that change nothing.
    access_programs: object = neutral(why="it is a matter of OpenAI's own models.")
    background: object = neutral(
        False, why="every response is waited for; its trajectory outlives the wait."
    )
    context_management: object = neutral([], why="send the input that the model is to see.")
    conversation: object = neutral(why=WHOLE_INPUT)
    image: object = neutral(why="no images are made here.")
    moderation: object = neutral(why="nothing is moderated.")
    prompt: object = neutral(
        why="no templates are kept on the server; send 'instructions' and 'input'."
    )
    top_logprobs: object = neutral(0, why="only sampled tokens have logprobs; leave it out.")
    truncation: object = neutral(
        "disabled", why="the input is never cut; cut it before it is sent."
    )


_DECODER = msgspec.json.Decoder(_Body)


def parse_request(body: bytes, known: RequestLookup | None = None) -> GenerationRequest:
    """Returns the request of a body. `known` resolves references. Raises `RequestRejected`."""
    request = errors.decode(_DECODER, body)
    reject_unless_neutral(request)
    if request.text is not None:
        reject_unless_neutral(request.text, at="text.")
    if request.reasoning is not None:
        reject_unless_neutral(request.reasoning, at="reasoning.")
    if request.prompt_cache_options is not None and request.prompt_cache_options.prewarm:
        raise unsupported("prompt_cache_options.prewarm", "it asks for no answer.")
    tools = _tools(request)
    choice = parse_tool_choice(request.tool_choice, tools)
    messages, image_param = _messages(request, known)
    return GenerationRequest(
        model=request.model,
        messages=messages,
        image_param=image_param,
        # A model without tools in its prompt makes no calls.
        tools=() if choice is None else tools,
        tool_choice=choice or "",
        parallel_tool_calls=request.parallel_tool_calls is not False,
        max_tokens=request.max_output_tokens,
        temperature=request.temperature,
        top_p=request.top_p,
        top_k=request.top_k if request.top_k and request.top_k > 0 else None,
        altering=request.altering,
        chat_template_kwargs=request.template_kwargs,
        json=parse_format(request.text.format if request.text else None, param="text.format"),
        reasoning_effort=request.reasoning.effort if request.reasoning else None,
        stream=bool(request.stream),
        logprobs=_LOGPROBS in (request.include or ()),
        instructed=bool(request.instructions),
        previous=request.previous_response_id,
    )


def _messages(request: _Body, known: RequestLookup | None) -> tuple[tuple[Message, ...], str]:
    parsed, image_param = items.parse_input(request.input, known)
    if not parsed:
        raise invalid("Invalid 'input': it says nothing; send at least one message.", param="input")
    instructions = (system(request.instructions),) if request.instructions else ()
    return (*instructions, *_earlier_messages(request, known), *parsed), image_param


def _earlier_messages(request: _Body, known: RequestLookup | None) -> tuple[Message, ...]:
    """Returns the conversation up to an earlier response, without the instructions of that
    response."""
    if request.previous_response_id is None:
        return ()
    answer = request.previous_response_id.removeprefix("resp_")
    past = None if known is None else known.earlier_answer(answer)
    if past is None:
        name = format_value(request.previous_response_id)
        raise invalid(
            f"Previous response with id {name} not found: {ONLY_OWN}",
            param="previous_response_id",
            code="previous_response_not_found",
        )
    return past.conversation[past.instructed :]


class _Function(Struct, tag="function", tag_field="type", forbid_unknown_fields=True):
    name: Text
    description: str | None = None
    parameters: dict[str, object] | None = None
    strict: bool | None = None
    defer_loading: Literal[False] | None = None


def _tools(request: _Body) -> tuple[dict[str, object], ...]:
    for index, tool in enumerate(request.tools or ()):
        if isinstance(tool.get("type"), str) and tool["type"] != "function":
            why = "built-in tools do not run here; send tools of type function."
            raise unsupported_value(f"tools[{index}].type", tool["type"], why)
    functions = convert(request.tools or [], list[_Function], root="tools")
    tools = messages.parse_tools([_as_chat(function) for function in functions])
    _check_recordable(tools)
    return tools


def _as_chat(tool: _Function) -> dict[str, object]:
    """Returns a tool in the format of chat completions. Its members always have the order that
    models know best."""
    members = {
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.parameters,
    }
    function = {name: value for name, value in members.items() if value is not None}
    return {"type": "function", "function": function}


def _check_recordable(tools: tuple[dict[str, object], ...]) -> None:
    try:
        msgspec.msgpack.encode(tools)
    except OverflowError as error:
        raise invalid("'tools' holds an integer of more than 64 bits.", param="tools") from error
