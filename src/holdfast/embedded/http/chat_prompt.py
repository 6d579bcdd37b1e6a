"""Turns messages and tools into a prompt, by the tokenizer's own chat template."""

import json
from typing import Any

from holdfast.embedded.http import parse_request
from holdfast.embedded.http.parse_request import ParsedRequest
from holdfast.embedded.model.load import LoadedModel
from holdfast.engine_api.errors import (
    EngineRequestRejected,
    invalid_parameter,
    malformed,
    unsupported,
)
from holdfast.engine_api.requests import ChatRequest, check_model


def parse_chat(raw: bytes, model: LoadedModel, *, served: str) -> ParsedRequest:
    """Parses a request of `/v1/chat/completions`."""
    body = parse_request.decode(raw, ChatRequest)
    check_model(body.model, served)
    tools = _tools(body)
    if body.max_completion_tokens is not None and body.max_completion_tokens < 1:
        raise invalid_parameter("max_completion_tokens", "at least 1", body.max_completion_tokens)
    parse_request.check_range("top_logprobs", body.top_logprobs, 0, parse_request.MAX_LOGPROBS)
    if body.top_logprobs and not body.logprobs:
        raise invalid_parameter(
            "top_logprobs", "given together with logprobs=true", body.top_logprobs
        )
    parsed = parse_request.build(
        body,
        body,
        model=model,
        prompts=[_prompt(body, model, tools)],
        max_tokens=body.max_completion_tokens or body.max_tokens,
        logprobs=(body.top_logprobs or 0) if body.logprobs else None,
    )
    if tools:
        # Markers of tool calls may be special tokens, which the text would lack.
        parsed.tools, parsed.skip_special_tokens = True, False
    return parsed


def _tools(body: ChatRequest) -> list[dict[str, object]]:
    tools, choice = body.tools or [], body.tool_choice
    if choice not in (None, "none", "auto"):
        raise unsupported(f"tool_choice={json.dumps(choice)}")
    if choice == "auto" and not tools:
        raise invalid_parameter("tool_choice", "given together with tools", choice)
    return [] if choice == "none" else tools


def _prompt(body: ChatRequest, model: LoadedModel, tools: list[dict[str, object]]) -> list[int]:
    options = body.chat_template_kwargs or {}
    for name, value in options.items():
        # Only flags and words for the model's own template, never a template or rendered text.
        if name in _RESERVED or not isinstance(value, bool | int | float | str | None):
            raise malformed("chat_template_kwargs", f"{name} cannot be given here")
    resumed, opened = bool(body.continue_final_message), body.add_generation_prompt
    text = _render(
        model,
        [_plain(message) for message in body.messages],
        tools=tools or None,
        add_generation_prompt=not resumed if opened is None else opened,
        continue_final_message=resumed,
        **options,
    )
    ids = model.tokenizer(text, add_special_tokens=False)["input_ids"]
    return [int(token) for token in ids]


_RESERVED = frozenset(
    {
        "add_generation_prompt", "chat_template", "continue_final_message", "conversation",
        "documents", "messages", "model", "padding", "return_dict", "return_tensors", "tokenize",
        "tokenizer_kwargs", "tools", "truncation",
    }
)  # fmt: skip


def _render(model: LoadedModel, messages: list[dict[str, Any]], **options: Any) -> str:
    if not model.tokenizer.chat_template:
        raise EngineRequestRejected(
            400, "The model's tokenizer has no chat template; use /v1/completions"
        )
    try:
        return str(model.tokenizer.apply_chat_template(messages, tokenize=False, **options))
    except Exception as error:  # the model's folder may contain any template
        raise EngineRequestRejected(
            400, f"The chat template refuses the messages: {error}", param="messages"
        ) from error


def _plain(message: Any) -> dict[str, Any]:
    """Returns a message as templates expect it, with joined text parts and arguments as objects."""
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise malformed("messages", "Each message should be an object with a role")
    plain = dict(message)
    if isinstance(content := plain.get("content"), list):
        plain["content"] = "".join(_part(part) for part in content)
    elif content is None:
        plain["content"] = ""
    if calls := plain.get("tool_calls"):
        if not isinstance(calls, list):
            raise malformed("messages.tool_calls", "Input should be a valid list")
        plain["tool_calls"] = [_call(call) for call in calls]
    return plain


def _part(part: Any) -> str:
    if not isinstance(part, dict) or not isinstance(part.get("text"), str):
        raise malformed("messages.content", "Only parts of type text are supported")
    return str(part["text"])


def _call(call: Any) -> dict[str, Any]:
    try:
        function = dict(call["function"])
        if isinstance(function.get("arguments"), str):
            function["arguments"] = json.loads(function["arguments"] or "{}")
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise malformed("messages.tool_calls", f"Input should be tool calls: {error}") from error
    return {**call, "function": function}
