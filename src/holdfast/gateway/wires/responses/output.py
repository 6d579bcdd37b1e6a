"""An answer as a `/v1/responses` object: its items, and the settings that it repeats.

A function of the request and the answer alone, so that sending an answer again gives the same
bytes. The ids of items hold the answer's id and the item's place, by which `items` puts those of
one answer together again. Settings that a `GenerationRequest` does not keep have their defaults; a
first system message is sent as the instructions.
"""

import msgspec

from holdfast.gateway.protocol.messages import Answer, AnswerChoice, GenerationRequest, Opening
from holdfast.gateway.wires.openai.chat import bound_logprob
from holdfast.records.message import Role, ToolCall
from holdfast.records.sampling import NAMED

Json = dict[str, object]

_CUTS = {"length": "max_output_tokens", "content_filter": "content_filter"}


def finished_response(opened: Json, answer: Answer, output: list[Json]) -> Json:
    """The response when nothing more comes."""
    is_cut = was_cut(answer)
    return {
        **opened,
        "status": "incomplete" if is_cut else "completed",
        "incomplete_details": {"reason": _CUTS[answer.choices[0].finish_reason]}
        if is_cut
        else None,
        "output": output,
        "usage": _usage(answer),
    }


def was_cut(answer: Answer) -> bool:
    """Whether its last item is incomplete."""
    return answer.choices[0].finish_reason in _CUTS


def started_response(request: GenerationRequest, answer: Answer | Opening) -> Json:
    """The response before its first item."""
    return {
        "id": f"resp_{answer.id}",
        "object": "response",
        "created_at": answer.created,
        "status": "in_progress",
        "background": False,
        "error": None,
        "incomplete_details": None,
        "instructions": _instructions(request),
        "max_output_tokens": request.max_tokens,
        "max_tool_calls": None,
        "metadata": {},
        "model": answer.model,
        "output": [],
        "parallel_tool_calls": request.parallel_tool_calls,
        "previous_response_id": request.previous,
        "reasoning": {"effort": request.reasoning_effort, "summary": None},
        "service_tier": "default",
        "store": False,
        "temperature": request.temperature,
        "text": {"format": _format(request)},
        "tool_choice": _tool_choice(request),
        "tools": msgspec.Raw(msgspec.json.encode([_tool(tool) for tool in request.tools])),
        "top_logprobs": 0,
        "top_p": request.top_p,
        "truncation": "disabled",
        "usage": None,
        "user": None,
    }


def _tool_choice(request: GenerationRequest) -> object:
    if not request.tool_choice.startswith(NAMED):
        return request.tool_choice or "auto"
    return {"type": "function", "name": request.tool_choice.removeprefix(NAMED)}


def _format(request: GenerationRequest) -> Json:
    if isinstance(request.json, bool):
        return {"type": "json_object" if request.json else "text"}
    schema = msgspec.Raw(request.json.encode())
    return {"type": "json_schema", "name": "answer", "schema": schema, "strict": True}


def items_of(answer: Answer) -> list[Json]:
    """Reasoning, then words, then calls. A reply without calls always has words, if only ""."""
    choice, found = answer.choices[0], list[Json]()
    message = choice.message
    if message.reasoning:
        found.append(reasoning_item(answer, 0, message.reasoning))
    if message.text or not message.tool_calls:
        found.append(text_item(answer, len(found), message.text, logprobs_of(choice)))
    for call in message.tool_calls:
        found.append(call_item(answer, len(found), call))
    if was_cut(answer):
        found[-1]["status"] = "incomplete"
    return found


def _id(kind: str, answer: Answer | Opening, index: int) -> str:
    return f"{kind}_{answer.id}_{index}"


def reasoning_item(answer: Answer | Opening, index: int, text: str) -> Json:
    return {
        "id": _id("rs", answer, index),
        "type": "reasoning",
        "status": "completed",
        "summary": [],
        "content": [{"type": "reasoning_text", "text": text}],
        "encrypted_content": None,
    }


def text_item(answer: Answer | Opening, index: int, text: str, logprobs: list[Json]) -> Json:
    return {
        "id": _id("msg", answer, index),
        "type": "message",
        "status": "completed",
        "role": "assistant",
        "content": [
            {
                "type": "output_text",
                "text": text,
                "annotations": [],
                "logprobs": logprobs,
            }
        ],
    }


def call_item(answer: Answer | Opening, index: int, call: ToolCall) -> Json:
    return {
        "id": _id("fc", answer, index),
        "type": "function_call",
        "status": "completed",
        "call_id": call.id,
        "name": call.name,
        "arguments": call.arguments,
    }


def logprobs_of(choice: AnswerChoice) -> list[Json]:
    """Of the tokens of the text; of all of them, where they do not spell the text."""
    text, sampled = choice.message.text, "".join(choice.tokens)
    start = sampled.rfind(text)
    end = start + len(text) if start >= 0 else len(sampled)
    found, at = list[Json](), 0
    for token, logprob in zip(choice.tokens, choice.logprobs, strict=True):
        if at < end and at + len(token) > start:
            found.append(_logprob(token, logprob))
        at += len(token)
    return found


def _logprob(token: str, logprob: float) -> Json:
    # A token that is half a character has a replacement for its text, and its bytes are not known.
    token_bytes = [] if "\ufffd" in token else list(token.encode())
    return {
        "token": token,
        "bytes": token_bytes,
        "logprob": bound_logprob(logprob),
        "top_logprobs": [],
    }


def _tool(tool: Json) -> Json:
    function = tool["function"]
    assert isinstance(function, dict), "tools are as `responses_request` makes them"
    # Arguments are what the model wrote: nothing is strict about them.
    absent = {"description": None, "parameters": None, "strict": False}
    return {"type": "function", **absent, **function}


def _instructions(request: GenerationRequest) -> str | None:
    first = request.messages[0] if request.messages else None
    return first.text if first is not None and first.role is Role.SYSTEM else None


def _usage(answer: Answer) -> Json:
    """Where the engine does not count tokens of reasoning apart, their number is 0: the client's
    model wants one."""
    return {
        "input_tokens": answer.prompt_tokens,
        "input_tokens_details": {
            "cached_tokens": answer.all_cached_tokens,
            "cache_write_tokens": 0,
        },
        "output_tokens": answer.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": answer.reasoning_tokens},
        "total_tokens": answer.prompt_tokens + answer.completion_tokens,
    }
