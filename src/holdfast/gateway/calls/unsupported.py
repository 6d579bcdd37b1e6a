"""What a request asks of a policy that cannot do it, said by the name that its wire has for it."""

from holdfast.gateway.calls.strip_fields import with_way_out
from holdfast.gateway.protocol.messages import Ask, RequestRejected
from holdfast.policy.rendering.messages_only import MessagesOnly
from holdfast.policy.rendering.renderer import Renderer
from holdfast.records.errors import IMAGES, BadRequest, Unsupported
from holdfast.records.redaction import redact
from holdfast.records.sampling import NO_REASONING

_NAMES: dict[str, dict[str, str]] = {
    "/v1/responses": {"json": "text.format", "reasoning_effort": "reasoning.effort"},
    "/v1/messages": {
        "json": "output_config.format",
        "reasoning_effort": "output_config.effort",
        "thinking_token_budget": "thinking",
        "parallel_tool_calls": "tool_choice.disable_parallel_tool_use",
    },
}
_USUAL = {"json": "response_format"}


def check_told(ask: Ask, renderer: Renderer) -> None:
    """Raises `RequestRejected` for an answer that could not be told as it is asked for."""
    if ask.token_ids and isinstance(renderer, MessagesOnly):
        raise _unsupported("return_token_ids", "its engine tells no token ids")


def refusal_of(error: Exception, ask: Ask, wire: str) -> RequestRejected | None:
    """What the agent is told of an error that its own request is the cause of; None for others.

    Nothing is recorded of it, and the agent can ask again without it.
    """
    if isinstance(error, Unsupported):
        return _unsupported(_name(error.what, ask, wire), error.why)
    if isinstance(error, BadRequest) and (what := _asked(ask)):
        # Engines know other schemas and other efforts than agents do.
        param = _name(what, ask, wire)
        refused = RequestRejected(400, f"Invalid '{param}': {redact(error.said)}", param=param)
        refused.is_unsupported = True
        return with_way_out(refused)
    return None


def _name(what: str, ask: Ask, wire: str) -> str:
    """A field of `Sampling`, or `images`, as the request calls it."""
    if what == IMAGES:
        return ask.image_param or _image_param(ask)
    if wire == "/v1/messages" and ask.reasoning_effort == NO_REASONING:
        # No effort has that name there: it was asked for by `thinking`.
        what = what.replace("reasoning_effort", "thinking_token_budget")
    return _NAMES.get(wire, _USUAL).get(what, what)


def _image_param(ask: Ask) -> str:
    """The same where messages are sent one by one, as in chat completions."""
    place = next((place for place, message in enumerate(ask.messages) if message.images), None)
    return "messages" if place is None else f"messages[{place}].content"


def _unsupported(param: str, why: str) -> RequestRejected:
    said = f"Unsupported parameter: '{param}' is not supported with this model: {why}"
    refused = RequestRejected(400, said, param=param, code="unsupported_parameter")
    refused.is_unsupported = True
    return with_way_out(refused)


def _asked(ask: Ask) -> str:
    """What of it not every engine does; "" for nothing."""
    asked = {
        IMAGES: any(message.images for message in ask.messages),
        "json": ask.json is not False,
        "tool_choice": bool(ask.tool_choice),
        "parallel_tool_calls": not ask.parallel_tool_calls,
        "top_k": bool(ask.top_k),
        "thinking_token_budget": ask.thinking_token_budget is not None,
        "reasoning_effort": bool(ask.reasoning_effort),
    }
    return next((name for name, is_asked in asked.items() if is_asked), "")
