"""What the fake engine reads and writes: vLLM's `/v1/completions`, as recorded from vLLM 0.32.

Answers have the recorded keys in the recorded order, errors the recorded shape. Knows nothing of
sockets.
"""

import random
import re
import time
from collections.abc import Callable

import msgspec
from msgspec import Struct

from holdfast.testing.fake_tokens import TEXT, Drawn, Limits
from holdfast.testing.faults import Fault, FaultKind

_NOT_A_LOGPROB = -123456.5


class Options(Struct, frozen=True):
    """What a fake engine is told when it starts."""

    model: str = "fake"
    mean_length: float = 24
    """Tokens until END, on average; 0: never."""
    replies: tuple[str, ...] = ()
    """Templates to answer with instead of random letters; see `fake_tokens.Sampler`."""
    delay: float = 0.0
    """Seconds that every request takes."""
    max_model_len: int = 1_000_000
    faults: tuple[Fault, ...] = ()


class Stats(Struct):
    """Counted since the start or the last reset."""

    requests: int = 0
    """Calls of `/v1/completions` that arrived, faulty ones included."""
    completions: int = 0
    """Generations that ran to their end, whether or not their answer arrived."""
    tokens: int = 0
    in_flight: int = 0
    faults: dict[str, int] = {}


class Body(Struct):
    """A request. What vLLM understands beyond this is ignored."""

    model: str
    prompt: list[int] | str
    max_tokens: int = 16
    temperature: float = 1.0
    logprobs: int | None = None
    return_token_ids: bool | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    n: int = 1
    stream: bool | None = None

    @property
    def limits(self) -> Limits:
        stops = [self.stop] if isinstance(self.stop, str) else self.stop or ()
        return Limits(self.max_tokens, self.stop_token_ids or (), stops)

    @property
    def seed_or_chance(self) -> int:
        return random.getrandbits(64) if self.seed is None else self.seed


class Logprobs(Struct):
    text_offset: list[int]
    token_logprobs: list[float]
    tokens: list[str]
    top_logprobs: list[dict[str, float]]


class Choice(Struct):
    index: int
    text: str
    logprobs: Logprobs | None
    finish_reason: str
    stop_reason: int | str | None
    token_ids: list[int] | None
    prompt_logprobs: None
    prompt_token_ids: list[int] | None
    routed_experts: None = None


class Usage(Struct):
    prompt_tokens: int
    total_tokens: int
    completion_tokens: int
    prompt_tokens_details: None = None
    completion_tokens_details: None = None


class Answer(Struct):
    id: str
    object: str
    created: int
    model: str
    choices: list[Choice]
    service_tier: None
    system_fingerprint: str
    usage: Usage
    kv_transfer_params: None = None
    ec_transfer_params: None = None
    metrics: None = None


def answer(body: Body, drawn: Drawn, request_id: str) -> Answer:
    prompt = list(body.prompt.encode()) if isinstance(body.prompt, str) else body.prompt
    choice = Choice(
        index=0,
        text=drawn.text,
        logprobs=None if body.logprobs is None else _logprobs(drawn),
        finish_reason=drawn.finish_reason,
        stop_reason=drawn.stop,
        token_ids=drawn.ids if body.return_token_ids else None,
        prompt_logprobs=None,
        prompt_token_ids=prompt if body.return_token_ids else None,
    )
    tokens = len(drawn.ids)
    return Answer(
        id=f"cmpl-{request_id}",
        object="text_completion",
        created=int(time.time()),
        model=body.model,
        choices=[choice],
        service_tier=None,
        system_fingerprint="holdfast-fake",
        usage=Usage(len(prompt), len(prompt) + tokens, tokens),
    )


def _logprobs(drawn: Drawn) -> Logprobs:
    tokens = [TEXT[token] for token in drawn.ids]
    return Logprobs(
        text_offset=list(range(len(tokens))),
        token_logprobs=drawn.logprobs,
        tokens=tokens,
        # Whatever number is asked for, only the sampled token is listed.
        top_logprobs=[{text: value} for text, value in zip(tokens, drawn.logprobs, strict=True)],
    )


def models(options: Options, *, created: int) -> bytes:
    permission = {
        "id": f"modelperm-{options.model}",
        "object": "model_permission",
        "created": created,
        "allow_create_engine": False,
        "allow_sampling": True,
        "allow_logprobs": True,
        "allow_search_indices": False,
        "allow_view": True,
        "allow_fine_tuning": False,
        "organization": "*",
        "group": None,
        "is_blocking": False,
    }
    model = {
        "id": options.model,
        "object": "model",
        "created": created,
        "owned_by": "vllm",
        "root": options.model,
        "parent": None,
        "max_model_len": options.max_model_len,
        "permission": [permission],
    }
    return msgspec.json.encode({"object": "list", "data": [model]})


# --- answers that are wrong on purpose


def spoil(right: Answer, kind: FaultKind) -> None:
    if kind in _SPOILERS:
        _SPOILERS[kind](right)


def spoiled_bytes(encoded: bytes, kind: FaultKind) -> bytes:
    if kind == FaultKind.MALFORMED_JSON:
        return encoded[: len(encoded) // 2]
    # msgspec never writes NaN; the json module, which engines use, does.
    return encoded.replace(b"%.1f" % _NOT_A_LOGPROB, b"NaN")


def _drop_ids(right: Answer) -> None:
    right.choices[0].token_ids = None


def _drop_a_logprob(right: Answer) -> None:
    if (logprobs := right.choices[0].logprobs) is not None:
        logprobs.token_logprobs.pop()


def _break_a_logprob(right: Answer) -> None:
    if (logprobs := right.choices[0].logprobs) is not None:
        logprobs.token_logprobs[-1] = _NOT_A_LOGPROB


def _rename_model(right: Answer) -> None:
    right.model = f"not-{right.model}"


def _abort(right: Answer) -> None:
    choice, usage = right.choices[0], right.usage
    kept = max(1, usage.completion_tokens // 2)
    choice.finish_reason, choice.stop_reason, choice.text = "abort", None, choice.text[:kept]
    usage.completion_tokens, usage.total_tokens = kept, usage.prompt_tokens + kept
    if choice.token_ids is not None:
        del choice.token_ids[kept:]
    if (logprobs := choice.logprobs) is not None:
        del logprobs.token_logprobs[kept:], logprobs.tokens[kept:]
        del logprobs.text_offset[kept:], logprobs.top_logprobs[kept:]


_SPOILERS: dict[FaultKind, Callable[[Answer], None]] = {
    FaultKind.MISSING_IDS: _drop_ids,
    FaultKind.LENGTH_MISMATCH: _drop_a_logprob,
    FaultKind.NAN_LOGPROB: _break_a_logprob,
    FaultKind.WRONG_MODEL: _rename_model,
    FaultKind.ABORT: _abort,
}


# --- refusals


class Refused(Exception):
    """An answer with an error status."""

    def __init__(
        self, status: int, message: str, *, kind: str = "BadRequestError", param: str | None = None
    ):
        super().__init__(message)
        self.status = status
        self._error = {"message": message, "type": kind, "param": param, "code": status}

    def encoded(self) -> bytes:
        return msgspec.json.encode({"error": self._error})


def malformed(error: Exception) -> Refused:
    """From what msgspec says: "Expected `int`, got `str` - at `$.max_tokens`"."""
    said, _, path = str(error).partition(" - at `$")
    where = "body" + re.sub(r"\[.*", "", path.rstrip("`"))
    message = f"1 validation error:\n  {{'type': 'invalid', 'loc': '{where}', 'msg': '{said}'}}"
    return Refused(400, message, kind="Bad Request", param=where)


def bad_parameter(name: str, rule: str, value: float) -> Refused:
    said = f"{name} must be {rule}, got {value}. (parameter={name}, value={value})"
    return Refused(400, said, param=name)


def unknown_model(asked: str, served: str) -> Refused:
    said = f"The model `{asked}` does not exist. Valid aliases: {served}."
    return Refused(404, said, kind="NotFoundError", param="model")


def too_long(limit: int, prompt: int, max_tokens: int) -> Refused:
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
    return Refused(400, f"{said} (parameter=input_tokens, value={prompt})", param="input_tokens")
