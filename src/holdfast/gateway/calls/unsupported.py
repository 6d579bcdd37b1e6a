"""Requests that the policy cannot follow, rejected by the name that their wire has for the
parameter."""

from holdfast.gateway.calls.strip_fields import with_remedy
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


def check_supported(request: Ask, renderer: Renderer) -> None:
    """Raises `RequestRejected` for an answer that cannot have the requested form."""
    if request.token_ids and isinstance(renderer, MessagesOnly):
        raise _unsupported("return_token_ids", "its engine tells no token ids")


def rejection_of(error: Exception, request: Ask, wire: str) -> RequestRejected | None:
    """The rejection for an error that the agent's own request causes; None for others.

    It is not recorded as a step, and the agent can repeat the call without the parameter.
    """
    names = _NAMES.get(wire, _USUAL)
    if isinstance(error, Unsupported):
        return _unsupported(names.get(error.what, error.what), error.why)
    if isinstance(error, BadRequest) and (option := _engine_option(request)):
        # Engines know other schemas and other efforts than agents do.
        param = names.get(option, option)
        rejection = RequestRejected(400, f"Invalid '{param}': {redact(error.said)}", param=param)
        rejection.is_unsupported = True
        return with_remedy(rejection)
    return None


def _unsupported(param: str, why: str) -> RequestRejected:
    message = f"Unsupported parameter: '{param}' is not supported with this model: {why}"
    rejection = RequestRejected(400, message, param=param, code="unsupported_parameter")
    rejection.is_unsupported = True
    return with_remedy(rejection)


def _engine_option(request: Ask) -> str:
    """The first option of it that not every engine has; "" for none."""
    options = {
        "json": request.json is not False,
        "tool_choice": bool(request.tool_choice),
        "parallel_tool_calls": not request.parallel_tool_calls,
        "top_k": bool(request.top_k),
        "reasoning_effort": bool(request.reasoning_effort),
    }
    return next((name for name, is_set in options.items() if is_set), "")
