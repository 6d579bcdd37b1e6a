"""Requests that the policy cannot follow, rejected by the name that their wire has for the
parameter."""

from msgspec import structs

from holdfast.gateway.calls.strip_fields import with_remedy
from holdfast.gateway.protocol.messages import GenerationRequest, RequestRejected
from holdfast.policy.rendering.messages_only import MessagesOnly
from holdfast.policy.rendering.renderer import Renderer
from holdfast.records.encoding.redaction import redact
from holdfast.records.errors import IMAGES, BadRequest, Unsupported
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


def check_supported(request: GenerationRequest, renderer: Renderer) -> None:
    """Raises `RequestRejected` for an answer that cannot have the requested form."""
    if request.token_ids and isinstance(renderer, MessagesOnly):
        raise _unsupported("return_token_ids", "its engine tells no token ids")


def rejection_of(error: Exception, request: GenerationRequest, wire: str) -> RequestRejected | None:
    """The rejection for an error that the agent's own request causes; None for others.

    It is not recorded as a step, and the agent can repeat the call without the parameter.
    """
    if isinstance(error, Unsupported):
        return _unsupported(_param(error.what, request, wire), error.why)
    if isinstance(error, BadRequest) and (option := _engine_option(request)):
        # Engines know other schemas and other efforts than agents do.
        param = _param(option, request, wire)
        rejection = RequestRejected(400, f"Invalid '{param}': {redact(error.said)}", param=param)
        rejection.is_unsupported = True
        return with_remedy(rejection)
    return None


def _param(option: str, request: GenerationRequest, wire: str) -> str:
    """The request's own name for a field of `Sampling`, or for `images`."""
    if option == IMAGES:
        return request.image_param or _image_param(request)
    if wire == "/v1/messages" and request.reasoning_effort == NO_REASONING:
        # No effort has that name there: `thinking` requested it.
        option = option.replace("reasoning_effort", "thinking_token_budget")
    return _NAMES.get(wire, _USUAL).get(option, option)


def _image_param(request: GenerationRequest) -> str:
    """The same where messages are sent one by one, as in chat completions."""
    images = (at for at, message in enumerate(request.messages) if message.images)
    at = next(images, None)
    return "messages" if at is None else f"messages[{at}].content"


def _unsupported(param: str, why: str) -> RequestRejected:
    message = f"Unsupported parameter: '{param}' is not supported with this model: {why}"
    rejection = RequestRejected(400, message, param=param, code="unsupported_parameter")
    rejection.is_unsupported = True
    return with_remedy(rejection)


def _engine_option(request: GenerationRequest) -> str:
    """The first option of it that not every engine has; "" for none."""
    options = {
        IMAGES: any(message.images for message in request.messages),
        "json": request.json is not False,
        "tool_choice": bool(request.tool_choice),
        "parallel_tool_calls": not request.parallel_tool_calls,
        "top_k": bool(request.top_k),
        "thinking_token_budget": request.thinking_token_budget is not None,
        "reasoning_effort": bool(request.reasoning_effort),
        "chat_template_kwargs": bool(request.chat_template_kwargs),
        **{name: bool(value) for name, value in structs.asdict(request.altering).items()},
    }
    return next((name for name, is_set in options.items() if is_set), "")
