"""Error responses in OpenAI's shape, with the messages, types and codes of vLLM 0.32."""

import re

import msgspec

_MISSING = re.compile(r"Object missing required field `(\w+)`")


class EngineRequestRejected(Exception):
    """A request that gets an error status."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = "BadRequestError",
        param: str | None = None,
        retry_after: float | None = None,
    ):
        super().__init__(message)
        self.status = status
        self.retry_after = retry_after
        self.body = {"error": {"message": message, "type": kind, "param": param, "code": status}}

    def encode(self) -> bytes:
        return msgspec.json.encode(self.body)


def invalid_parameter(name: str, rule: str, value: object) -> EngineRequestRejected:
    message = f"{name} must be {rule}, got {value}. (parameter={name}, value={value})"
    return EngineRequestRejected(400, message, param=name)


def malformed(field: str, problem: str) -> EngineRequestRejected:
    """Returns the error of an invalid field. `field` is its path in the body, or "" for the body
    itself."""
    where = f"body.{field}" if field else "body"
    message = f"1 validation error:\n  {{'type': 'invalid', 'loc': '{where}', 'msg': '{problem}'}}"
    return EngineRequestRejected(400, message, kind="Bad Request", param=where)


def undecodable(error: Exception) -> EngineRequestRejected:
    """Returns the error for msgspec's message, such as "Expected `int`, got `str` - at
    `$.max_tokens`"."""
    problem, _, path = str(error).partition(" - at `$")
    field = re.sub(r"\[.*", "", path.rstrip("`"))
    if missing := _MISSING.match(problem):
        field += f".{missing[1]}"
    return malformed(field.removeprefix("."), problem)


def unsupported(name: str) -> EngineRequestRejected:
    message = f"{name} is not supported by this engine. (parameter={name})"
    return EngineRequestRejected(400, message, param=name)


def older_limit() -> EngineRequestRejected:
    """Returns the error with which OpenAI's reasoning models refuse `max_tokens`."""
    message = (
        "Unsupported parameter: 'max_tokens' is not supported with this model. Use "
        "'max_completion_tokens' instead."
    )
    return EngineRequestRejected(400, message, kind="invalid_request_error", param="max_tokens")


def unknown_model(requested: object, served: str) -> EngineRequestRejected:
    message = f"The model `{requested}` does not exist. Valid aliases: {served}."
    return EngineRequestRejected(404, message, kind="NotFoundError", param="model")


def empty_prompt() -> EngineRequestRejected:
    return EngineRequestRejected(400, "The decoder prompt cannot be empty", param="prompt")


def out_of_vocabulary(token: int) -> EngineRequestRejected:
    return EngineRequestRejected(400, f"Token id {token} is out of vocabulary")


def too_long(limit: int, prompt: int, max_tokens: int) -> EngineRequestRejected:
    problem = (
        f"your prompt contains {prompt} input tokens, which exceeds this limit even without any "
        "output tokens. Please reduce the length of the input prompt."
    )
    if prompt < limit:
        problem = (
            f"you requested {max_tokens} output tokens and your prompt contains {prompt} input "
            "tokens. Please reduce the length of the input prompt or the number of requested "
            "output tokens."
        )
    message = f"This model's maximum context length is {limit} tokens. However, {problem}"
    return EngineRequestRejected(
        400, f"{message} (parameter=input_tokens, value={prompt})", param="input_tokens"
    )


def no_images(model: str) -> EngineRequestRejected:
    return EngineRequestRejected(400, f"{model} is not a multimodal model")


def no_thinking_budget() -> EngineRequestRejected:
    """Returns the error of a vLLM that does not know how its model reasons."""
    return EngineRequestRejected(
        400,
        "thinking_token_budget is set but reasoning_config is not configured. Please set "
        "--reasoning-parser and/or --reasoning-config to use thinking_token_budget.",
    )


def scale_out_disabled() -> EngineRequestRejected:
    message = (
        "Scale-out endpoints are disabled. Restart vllm serve with --enable-scale-out to enable "
        "them."
    )
    return EngineRequestRejected(403, message, kind="PermissionDeniedError")


def unavailable(message: str, *, retry_after: float | None = None) -> EngineRequestRejected:
    kind = "ServiceUnavailableError"
    return EngineRequestRejected(503, message, kind=kind, retry_after=retry_after)


def engine_failed(message: str = "EngineCore encountered an issue") -> EngineRequestRejected:
    """Returns vLLM's error after its worker has died, for a status or inside a stream."""
    return EngineRequestRejected(500, message, kind="InternalServerError")
