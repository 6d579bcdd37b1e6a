"""How each engine says that it sampled some tokens: answers and streams, made to order."""

import json
from array import array
from collections.abc import Sequence
from typing import Any

from holdfast.policy.dialects import DIALECTS
from holdfast.policy.dialects.dialect import Kind
from holdfast.policy.policy import Request
from holdfast.records.sampling import Sampling
from support.policy.canned_server import DONE, Answer, sse

MODEL = "m"
PROMPT = [1, 2, 3]
TOKEN_KINDS = (Kind.VLLM, Kind.VLLM_GENERATE, Kind.SGLANG, Kind.FIREWORKS)
PATHS = {kind: dialect.path for kind, dialect in DIALECTS.items()}


def request(name: str = "r", *, max_tokens: int = 8, **more: Any) -> Request:
    stop = more.pop("stop", ())
    seed = more.pop("seed", 7)
    prompt = array("i", more.pop("prompt", PROMPT))
    return Request(prompt, Sampling(max_tokens, stop=stop), seed, name, **more)


def logprob_of(token: int) -> float:
    """A token's own, so that one that sits at another's place is seen. Exact in 32 bits."""
    return -(token % 64) / 8


def logprobs_of(ids: Sequence[int]) -> list[float]:
    return [logprob_of(token) for token in ids]


def answer_body(kind: Kind, ids: Sequence[int], *, finish: str | None = "stop", **more: Any) -> Any:
    """A whole answer, or what an event of a stream says of its own tokens.

    `more`: `logprobs`, `model`, `prompt`, `versions` as (version, start, end), `total`,
    `prompt_tokens`.
    """
    more.setdefault("logprobs", logprobs_of(ids))
    return _FORMATS[kind](list(ids), finish, more)


def _completions(ids: list[int], finish: str | None, more: dict[str, Any]) -> Any:
    choice = {
        "index": 0,
        "text": "".join(map(chr, ids)) if all(0 <= token < 0x110000 for token in ids) else "?",
        "logprobs": {"token_logprobs": more["logprobs"], "tokens": [str(token) for token in ids]},
        "finish_reason": finish,
        "stop_reason": None,
        "token_ids": ids,
        "prompt_token_ids": more.get("prompt"),
    }
    if "versions" in more:
        choice["weight_versions"] = _versions(more["versions"])
    answer = {"id": "cmpl-r", "model": more.get("model", MODEL), "choices": [choice]}
    return answer | _usage(more)


def _generate(ids: list[int], finish: str | None, more: dict[str, Any]) -> Any:
    content = [
        {"token_id": token, "logprob": logprob, "rank": 1, "top_logprobs": []}
        for token, logprob in zip(ids, more["logprobs"], strict=False)
    ]
    choice = {
        "index": 0,
        "finish_reason": finish,
        "stop_reason": None,
        "token_ids": ids,
        "logprobs": {"content": content},
        "weight_versions": _versions(more.get("versions")),
    }
    answer = {
        "request_id": "generate-r",
        "model": more.get("model", MODEL),
        "prompt_token_ids": more.get("prompt"),
        "choices": [choice],
    }
    return answer | _usage(more)


def _sglang(ids: list[int], finish: str | None, more: dict[str, Any]) -> Any:
    logprobs = zip(more["logprobs"], ids, strict=False)
    meta = {
        "id": "r",
        "finish_reason": None if finish is None else {"type": finish},
        "completion_tokens": more.get("total", len(ids)),
        "output_token_logprobs": [[logprob, item, None] for logprob, item in logprobs],
    }
    if "prompt_tokens" in more:
        meta["prompt_tokens"] = more["prompt_tokens"]
    if "version" in more:
        meta["weight_version"] = more["version"]
    return {"text": "", "output_ids": ids, "meta_info": meta}


def _fireworks(ids: list[int], finish: str | None, more: dict[str, Any]) -> Any:
    content = [
        {"token_id": token, "logprob": -99.0, "sampling_logprob": logprob}
        for token, logprob in zip(ids, more["logprobs"], strict=False)
    ]
    choice = {
        "index": 0,
        "text": "",
        "logprobs": {"content": content},
        "finish_reason": finish,
        "token_ids": ids,
        "prompt_token_ids": more.get("prompt"),
    }
    return {"id": "f", "model": more.get("model", MODEL), "choices": [choice]} | _usage(more)


_FORMATS = {
    Kind.VLLM: _completions,
    Kind.VLLM_GENERATE: _generate,
    Kind.SGLANG: _sglang,
    Kind.FIREWORKS: _fireworks,
}


def _versions(versions: Any) -> Any:
    if versions is None:
        return None
    return [{"version": name, "start": start, "end": end} for name, start, end in versions]


def _usage(more: dict[str, Any]) -> dict[str, Any]:
    names = {"total": "completion_tokens", "prompt_tokens": "prompt_tokens"}
    usage = {names[name]: more[name] for name in names if name in more}
    return {"usage": usage} if usage else {}


def events(
    kind: Kind, ids: Sequence[int], *, finish: str | None = "stop", repeat: bool = False
) -> list[Any]:
    """One event for each token; SGLang's repeat what came before, if `repeat`."""
    messages = []
    for at, token in enumerate(ids):
        last = finish if at == len(ids) - 1 else None
        shown = ids[: at + 1] if repeat else [token]
        more = {"total": at + 1} if kind is Kind.SGLANG else {}
        messages.append(answer_body(kind, shown, finish=last, **more))
    return messages


def streamed(
    kind: Kind, ids: Sequence[int], *, finish: str | None = "stop", cut: bool = False
) -> Answer:
    """A stream of `ids`; with `cut`, the connection breaks after them."""
    chunks = sse(*events(kind, ids, finish=finish), *(() if cut else (DONE,)))
    return Answer(chunks=chunks, cut=cut)


def plain(kind: Kind, ids: Sequence[int], **more: Any) -> Answer:
    return Answer(body=answer_body(kind, ids, **more))


def prompt_of_body(kind: Kind, body: Any) -> list[int]:
    """The tokens that a request asks to go on from."""
    names = {Kind.VLLM_GENERATE: "token_ids", Kind.SGLANG: "input_ids"}
    numbers: list[int] = body[names.get(kind, "prompt")]
    return numbers


def max_tokens_of(kind: Kind, body: Any) -> int:
    names = {
        Kind.VLLM_GENERATE: ("sampling_params", "max_tokens"),
        Kind.SGLANG: ("sampling_params", "max_new_tokens"),
    }
    for name in names.get(kind, ("max_tokens",)):
        body = body[name]
    return int(body)


def encoded(answer: object) -> bytes:
    return json.dumps(answer).encode()


def models(name: str = MODEL, *, owned_by: str = "vllm", **more: Any) -> Answer:
    """It says of which distribution its logprobs are, so that nobody measures it."""
    model = {"id": name, "owned_by": owned_by, "logprobs_mode": "processed", **more}
    return Answer(body={"object": "list", "data": [model]})
