"""Messages and tools to a prompt, by the tokenizer's own chat template."""

import json
from typing import Any

from holdfast.embedded.http import parse_request
from holdfast.embedded.http.errors import EngineRequestRejected, bad, malformed, unsupported
from holdfast.embedded.http.parse_fields import FieldReader
from holdfast.embedded.http.parse_request import MAX_LOGPROBS, ParsedRequest
from holdfast.embedded.model.load import LoadedModel


def chat(body: FieldReader, model: LoadedModel, *, served: str) -> ParsedRequest:
    """`/v1/chat/completions`."""
    parse_request.check_model(body, served, required=True)
    tools = _tools(body)
    prompt = _prompt(body, model, tools)
    limits = [body.integer(name, least=1) for name in ("max_completion_tokens", "max_tokens")]
    logprobs = body.flag("logprobs")
    top = body.integer("top_logprobs", least=0, most=MAX_LOGPROBS)
    if top and not logprobs:
        raise bad("top_logprobs", "given together with logprobs=true", top)
    asked = parse_request.common(body, model, [prompt], max_tokens=limits[0] or limits[1])
    asked.tools = bool(tools)
    if tools:
        # The marks of a tool call may be special tokens, which the text would lack.
        asked.skip_special_tokens = False
    if logprobs:
        asked.sampling = parse_request.with_logprobs(asked.sampling, top or 0)
    return asked


def _tools(body: FieldReader) -> list[Any]:
    tools = body.take("tools") or []
    choice = body.take("tool_choice")
    if not isinstance(tools, list):
        raise malformed("tools", "Input should be a valid list")
    if choice not in (None, "none", "auto"):
        raise unsupported(f"tool_choice={json.dumps(choice)}")
    if choice == "auto" and not tools:
        raise bad("tool_choice", "given together with tools", choice)
    return [] if choice == "none" else tools


def _prompt(body: FieldReader, model: LoadedModel, tools: list[Any]) -> list[int]:
    messages = body.take("messages")
    if not isinstance(messages, list):
        raise malformed("messages", "Input should be a valid list")
    options = body.take("chat_template_kwargs") or {}
    if not isinstance(options, dict):
        raise malformed("chat_template_kwargs", "Input should be an object")
    for name, value in options.items():
        # Flags and words for the model's own template: never a template, or what it renders.
        if name in _RESERVED or not isinstance(value, bool | int | float | str | None):
            raise malformed("chat_template_kwargs", f"{name} cannot be given here")
    carry_on = body.flag("continue_final_message")
    text = _rendered(
        model,
        [_plain(message) for message in messages],
        tools=tools or None,
        add_generation_prompt=body.flag("add_generation_prompt", default=not carry_on),
        continue_final_message=carry_on,
        **options,
    )
    ids = model.tokenizer(text, add_special_tokens=False)["input_ids"]
    return [int(one) for one in ids]


_RESERVED = frozenset(
    {
        "add_generation_prompt", "chat_template", "continue_final_message", "conversation",
        "documents", "messages", "model", "padding", "return_dict", "return_tensors", "tokenize",
        "tokenizer_kwargs", "tools", "truncation",
    }
)  # fmt: skip


def _rendered(model: LoadedModel, messages: list[dict[str, Any]], **options: Any) -> str:
    if not model.tokenizer.chat_template:
        raise EngineRequestRejected(
            400, "The model's tokenizer has no chat template; use /v1/completions"
        )
    try:
        return str(model.tokenizer.apply_chat_template(messages, tokenize=False, **options))
    except Exception as error:  # the template is a program of the model's folder
        raise EngineRequestRejected(
            400, f"The chat template refuses the messages: {error}", param="messages"
        ) from error


def _plain(message: Any) -> dict[str, Any]:
    """A message as templates expect it: text parts joined, arguments as objects."""
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
