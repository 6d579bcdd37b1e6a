"""Errors in OpenAI's shape, with the codes and names that vLLM gives them."""

import msgspec


class EngineRequestRejected(Exception):
    """A request that gets an error status."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = "BadRequestError",
        param: str | None = None,
        retry_after: int | None = None,
    ):
        super().__init__(message)
        self.status = status
        self.retry_after = retry_after
        self.error = {"message": message, "type": kind, "param": param, "code": status}

    def encoded(self) -> bytes:
        return msgspec.json.encode({"error": self.error})


def bad(name: str, rule: str, value: object) -> EngineRequestRejected:
    said = f"{name} must be {rule}, got {value}. (parameter={name}, value={value})"
    return EngineRequestRejected(400, said, param=name)


def malformed(name: str, said: str) -> EngineRequestRejected:
    where = f"body.{name}" if name else "body"
    message = f"1 validation error:\n  {{'type': 'invalid', 'loc': '{where}', 'msg': '{said}'}}"
    return EngineRequestRejected(400, message, kind="Bad Request", param=where)


def unsupported(name: str) -> EngineRequestRejected:
    return EngineRequestRejected(
        400, f"{name} is not supported by this engine. (parameter={name})", param=name
    )


def unknown_model(asked: object, served: str) -> EngineRequestRejected:
    said = f"The model `{asked}` does not exist. Valid aliases: {served}."
    return EngineRequestRejected(404, said, kind="NotFoundError", param="model")


def too_long(limit: int, prompt: int, max_tokens: int) -> EngineRequestRejected:
    said = f"This model's maximum context length is {limit} tokens. However, "
    if prompt >= limit:
        said += (
            f"your prompt contains {prompt} input tokens, which leaves no room for output tokens. "
            "Please reduce the length of the input prompt."
        )
    else:
        said += (
            f"you requested {max_tokens} output tokens and your prompt contains {prompt} input "
            "tokens. Please reduce the length of the input prompt or the number of requested "
            "output tokens."
        )
    return EngineRequestRejected(
        400, f"{said} (parameter=input_tokens, value={prompt})", param="input_tokens"
    )


def full() -> EngineRequestRejected:
    return EngineRequestRejected(
        503, "The waiting queue is full", kind="ServiceUnavailableError", retry_after=1
    )


def broken(message: str = "The engine encountered an issue") -> EngineRequestRejected:
    return EngineRequestRejected(500, message, kind="InternalServerError")
