"""Error answers of the fake engine: the recorded words of vLLM 0.32, in its recorded shape."""

import re

import msgspec


class FakeRequestRejected(Exception):
    """An answer with an error status."""

    def __init__(
        self, status: int, message: str, *, kind: str = "BadRequestError", param: str | None = None
    ):
        super().__init__(message)
        self.status = status
        self.error = {"message": message, "type": kind, "param": param, "code": status}

    def encoded(self) -> bytes:
        return msgspec.json.encode({"error": self.error})


def engine_died() -> FakeRequestRejected:
    """What vLLM says, plainly or inside a stream, when its worker is gone."""
    return FakeRequestRejected(500, "EngineCore encountered an issue", kind="InternalServerError")


def malformed(error: Exception) -> FakeRequestRejected:
    """From what msgspec says: "Expected `int`, got `str` - at `$.max_tokens`"."""
    said, _, path = str(error).partition(" - at `$")
    where = "body" + re.sub(r"\[.*", "", path.rstrip("`"))
    message = f"1 validation error:\n  {{'type': 'invalid', 'loc': '{where}', 'msg': '{said}'}}"
    return FakeRequestRejected(400, message, kind="Bad Request", param=where)


def bad_parameter(name: str, rule: str, value: float) -> FakeRequestRejected:
    said = f"{name} must be {rule}, got {value}. (parameter={name}, value={value})"
    return FakeRequestRejected(400, said, param=name)


def unknown_model(asked: str, served: str) -> FakeRequestRejected:
    said = f"The model `{asked}` does not exist. Valid aliases: {served}."
    return FakeRequestRejected(404, said, kind="NotFoundError", param="model")


def scale_out_disabled() -> FakeRequestRejected:
    said = (
        "Scale-out endpoints are disabled. Restart vllm serve with --enable-scale-out to enable "
        "them."
    )
    return FakeRequestRejected(403, said, kind="PermissionDeniedError")


def too_long(limit: int, prompt: int, max_tokens: int) -> FakeRequestRejected:
    said = f"This model's maximum context length is {limit} tokens. However, "
    if prompt >= limit:
        said += (
            f"your prompt contains {prompt} input tokens, which exceeds this limit even without "
            "any output tokens. Please reduce the length of the input prompt."
        )
    else:
        said += (
            f"you requested {max_tokens} output tokens and your prompt contains {prompt} input "
            "tokens. Please reduce the length of the input prompt or the number of requested "
            "output tokens."
        )
    return FakeRequestRejected(
        400, f"{said} (parameter=input_tokens, value={prompt})", param="input_tokens"
    )
