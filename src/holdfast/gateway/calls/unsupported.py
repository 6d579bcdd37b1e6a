"""What a request asks of a policy that cannot do it, said by the name that its wire has for it."""

from holdfast.gateway.calls.strip_fields import with_way_out
from holdfast.gateway.protocol.messages import Ask, RequestRejected
from holdfast.policy.rendering.messages_only import MessagesOnly
from holdfast.policy.rendering.renderer import Renderer
from holdfast.records.errors import BadRequest, Unsupported
from holdfast.records.redaction import redact

_NAMES: dict[str, dict[str, str]] = {
    "/v1/responses": {"json": "text.format", "reasoning_effort": "reasoning.effort"},
    "/v1/messages": {
        "json": "output_config.format",
        "reasoning_effort": "output_config.effort",
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
    names = _NAMES.get(wire, _USUAL)
    if isinstance(error, Unsupported):
        return _unsupported(names.get(error.what, error.what), error.why)
    if isinstance(error, BadRequest) and (what := _asked(ask)):
        # Engines know other schemas and other efforts than agents do.
        param = names.get(what, what)
        refused = RequestRejected(400, f"Invalid '{param}': {redact(error.said)}", param=param)
        refused.is_unsupported = True
        return with_way_out(refused)
    return None


def _unsupported(param: str, why: str) -> RequestRejected:
    said = f"Unsupported parameter: '{param}' is not supported with this model: {why}"
    refused = RequestRejected(400, said, param=param, code="unsupported_parameter")
    refused.is_unsupported = True
    return with_way_out(refused)


def _asked(ask: Ask) -> str:
    """What of it not every engine does; "" for nothing."""
    asked = {
        "json": ask.json is not False,
        "tool_choice": bool(ask.tool_choice),
        "parallel_tool_calls": not ask.parallel_tool_calls,
        "top_k": bool(ask.top_k),
        "reasoning_effort": bool(ask.reasoning_effort),
    }
    return next((name for name, is_asked in asked.items() if is_asked), "")
