"""OpenAI's chat completions, `/v1/chat/completions`.

An answer is told as one JSON object or as a stream of chunks. Both are functions of the answer
alone: told again, they have the same bytes.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated

import msgspec
from msgspec import Meta

from holdfast.gateway.exchange import Answer, Ask, Choice, Refused
from holdfast.gateway.wires import openai_errors, sse
from holdfast.gateway.wires.openai_errors import unsupported_value, wrong
from holdfast.gateway.wires.openai_messages import Told, messages, tools
from holdfast.gateway.wires.openai_parameters import (
    NEUTRAL,
    Count,
    Parameters,
    only_neutral,
)
from holdfast.records.message import ToolCall

_LEAST_LOGPROB = -9999.0
"""What OpenAI says for a token that could hardly be sampled; JSON has no infinity."""


class _Body(Parameters, kw_only=True, forbid_unknown_fields=True):
    messages: Annotated[list[Told], Meta(min_length=1)]
    tools: list[dict[str, object]] | None = None
    tool_choice: str | dict[str, object] | None = None
    max_completion_tokens: Count | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0)] | None = None

    # A guess of the answer that only makes it faster.
    prediction: object = None

    # Followed only where they ask for nothing: see _NEUTRAL.
    functions: object = None
    function_call: object = None
    parallel_tool_calls: object = None
    modalities: object = None
    audio: object = None
    moderation: object = None
    web_search_options: object = None
    reasoning_effort: object = None
    verbosity: object = None
    chat_template: object = None
    chat_template_kwargs: object = None
    add_generation_prompt: object = None
    continue_final_message: object = None
    include_reasoning: object = None


_NEUTRAL: dict[str, tuple[object, ...]] = {
    **NEUTRAL,
    "functions": (),
    "function_call": (),
    "parallel_tool_calls": (True,),
    "modalities": (["text"],),
    "audio": (),
    "moderation": (),
    "web_search_options": (),
    "reasoning_effort": (),
    "verbosity": ("medium",),
    "chat_template": (),
    "chat_template_kwargs": ({},),
    "add_generation_prompt": (True,),
    "continue_final_message": (False,),
    "include_reasoning": (True,),
}

_DECODER = msgspec.json.Decoder(_Body)


class OpenAIChat:
    """The wire."""

    def ask(self, body: bytes) -> Ask:
        told = openai_errors.decoded(_DECODER, body)
        only_neutral(told, _NEUTRAL)
        if told.top_logprobs:
            raise unsupported_value(
                "top_logprobs", told.top_logprobs, "only sampled tokens have logprobs; send 0."
            )
        return Ask(
            model=told.model,
            messages=messages(told.messages),
            tools=_shown_tools(told),
            max_tokens=_max_tokens(told),
            temperature=told.temperature,
            top_p=told.top_p,
            stop=told.stops,
            n=told.n or 1,
            stream=bool(told.stream),
            logprobs=bool(told.logprobs),
            include_usage=told.include_usage,
        )

    def answer(self, ask: Ask, answer: Answer) -> bytes:
        return msgspec.json.encode(
            {
                **_head(answer, "chat.completion"),
                "choices": [_choice(i, one, ask=ask) for i, one in enumerate(answer.choices)],
                "usage": usage(answer),
                "system_fingerprint": None,
            }
        )

    def events(self, ask: Ask, answer: Answer) -> list[bytes]:
        head = _head(answer, "chat.completion.chunk")
        head["system_fingerprint"] = None
        # Whoever asked for the usage gets null for it in all chunks but the last.
        rest = {"usage": None} if ask.include_usage else {}
        said = [
            {**head, "choices": [chunk], **rest}
            for index, choice in enumerate(answer.choices)
            for chunk in _chunks(index, choice, ask=ask)
        ]
        if ask.include_usage:
            said.append({**head, "choices": [], "usage": usage(answer)})
        return [*(sse.data(msgspec.json.encode(one)) for one in said), sse.DONE]

    def keep_alive(self) -> bytes:
        return sse.KEEP_ALIVE

    def refusal(self, refused: Refused) -> bytes:
        return openai_errors.encoded(refused)


def _max_tokens(told: _Body) -> int | None:
    given = {one for one in (told.max_tokens, told.max_completion_tokens) if one is not None}
    if len(given) > 1:
        said = "'max_tokens' and 'max_completion_tokens' differ; send one of them."
        raise wrong(said, param="max_tokens")
    return given.pop() if given else None


def _shown_tools(told: _Body) -> tuple[dict[str, object], ...]:
    if told.tool_choice not in (None, "auto", "none"):
        raise unsupported_value(
            "tool_choice", told.tool_choice, "no call can be forced; send 'auto' or 'none'."
        )
    found = tools(told.tools or ())
    return () if told.tool_choice == "none" else found


def _head(answer: Answer, kind: str) -> dict[str, object]:
    return {
        "id": f"chatcmpl-{answer.id}",
        "object": kind,
        "created": answer.created,
        "model": answer.model,
    }


def usage(answer: Answer) -> dict[str, object]:
    """As all of OpenAI's completions have it. Tokens of reasoning are not counted apart, which is
    said as null and not as 0 where there are some."""
    reasons = any(one.message.reasoning for one in answer.choices)
    return {
        "prompt_tokens": answer.prompt_tokens,
        "completion_tokens": answer.completion_tokens,
        "total_tokens": answer.prompt_tokens + answer.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": answer.cached_tokens, "audio_tokens": 0},
        "completion_tokens_details": {
            "reasoning_tokens": None if reasons else 0,
            "audio_tokens": 0,
            "accepted_prediction_tokens": 0,
            "rejected_prediction_tokens": 0,
        },
    }


def _choice(index: int, choice: Choice, *, ask: Ask) -> dict[str, object]:
    said = choice.message
    message: dict[str, object] = {"role": "assistant", "content": _content(choice), "refusal": None}
    if said.reasoning:
        message["reasoning_content"] = said.reasoning
    if said.tool_calls:
        message["tool_calls"] = [_call(one) for one in said.tool_calls]
    return {
        "index": index,
        "message": message,
        "logprobs": _logprobs(choice, range(len(choice.tokens))) if ask.logprobs else None,
        "finish_reason": choice.finish_reason,
    }


def _content(choice: Choice) -> str | None:
    """Null only where tool calls are all that was said."""
    return None if choice.message.tool_calls and not choice.message.text else choice.message.text


def _call(call: ToolCall) -> dict[str, object]:
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": call.id, "type": "function", "function": function}


def _logprobs(choice: Choice, places: Sequence[int]) -> dict[str, object]:
    said = [_logprob(choice.tokens[i], choice.logprobs[i]) for i in places]
    return {"content": said, "refusal": None}


def least_logprob(logprob: float) -> float:
    """Bounded from below, as OpenAI does it."""
    return max(logprob, _LEAST_LOGPROB)


def _logprob(token: str, logprob: float) -> dict[str, object]:
    # A token that is half a character has a replacement for its text, and its bytes are not known.
    known = "\ufffd" not in token
    return {
        "token": token,
        "logprob": least_logprob(logprob),
        "bytes": list(token.encode()) if known else None,
        "top_logprobs": [],
    }


def _chunks(index: int, choice: Choice, *, ask: Ask) -> Iterator[dict[str, object]]:
    """One choice after another: its role, its reasoning, its text, its calls, its end."""
    text = choice.message.text
    spelled = sse.spelled(choice.tokens, text) if ask.logprobs else None
    # Logprobs of tokens that are not the text's alone come at once, with the end: the published
    # library counts those of a choice's first chunk twice.
    apart = _logprobs(choice, range(len(choice.tokens))) if ask.logprobs and not spelled else None
    opening = {
        "role": "assistant",
        "content": None if _content(choice) is None else "",
        "refusal": None,
    }
    yield _chunk(index, opening)
    for piece in sse.pieces(choice.message.reasoning or ""):
        yield _chunk(index, {"reasoning_content": piece})
    if spelled is None:
        for piece in sse.pieces(text):
            yield _chunk(index, {"content": piece})
    for piece, places in spelled or ():
        yield _chunk(index, {"content": piece}, logprobs=_logprobs(choice, places))
    for delta in _call_deltas(choice.message.tool_calls):
        yield _chunk(index, {"tool_calls": [delta]})
    yield _chunk(index, {}, logprobs=apart, finish_reason=choice.finish_reason)


def _call_deltas(calls: Sequence[ToolCall]) -> Iterator[dict[str, object]]:
    for index, call in enumerate(calls):
        function = {"name": call.name, "arguments": ""}
        yield {"index": index, "id": call.id, "type": "function", "function": function}
        for piece in sse.pieces(call.arguments):
            yield {"index": index, "function": {"arguments": piece}}


def _chunk(
    index: int,
    delta: Mapping[str, object],
    *,
    logprobs: dict[str, object] | None = None,
    finish_reason: str | None = None,
) -> dict[str, object]:
    return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason}
