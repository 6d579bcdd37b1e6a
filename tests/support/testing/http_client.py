"""A client of the fake engine that knows no policy: bare aiohttp, so that faults are seen raw."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import aiohttp
from msgspec import Struct

from holdfast.policy.rendering.renderer import ByteRenderer
from holdfast.records.message import user
from holdfast.testing import FakeEngine

PROMPT = list(ByteRenderer().render([user("hello")], []))
MESSAGES = [{"role": "user", "content": "hello"}]
PATHS = {
    "completions": "/v1/completions",
    "chat": "/v1/chat/completions",
    "generate": "/inference/v1/generate",
    "sglang": "/generate",
    "fireworks": "/v1/completions",
}
BROKEN = (aiohttp.ClientError, OSError, TimeoutError)


class Answer(Struct):
    """What came: everything up to where it ended or broke off."""

    status: int = 0
    body: bytes = b""
    broke: Exception | None = None

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def data(self) -> list[str]:
        """What each event holds; the last may be torn."""
        lines = self.body.decode().split("\n\n")
        return [line.removeprefix("data: ") for line in lines if line]

    @property
    def done(self) -> bool:
        return bool(self.data) and self.data[-1] == "[DONE]"

    @property
    def events(self) -> list[Any]:
        return [json.loads(item) for item in self.data if item != "[DONE]"]


def body(engine: FakeEngine, wire: str, **fields: Any) -> dict[str, Any]:
    """A request that asks for everything, the same one in each wire's words."""
    prompt = fields.pop("prompt", PROMPT)
    seed, limit = fields.pop("seed", 1), fields.pop("max_tokens", 64)
    stops = {key: fields.pop(key) for key in ("stop", "stop_token_ids") if key in fields}
    usage = {"stream_options": {"include_usage": True}} if fields.get("stream") else {}
    sampling: dict[str, Any] = {"temperature": 1.0, **stops}
    if wire == "sglang":
        sampling |= {"max_new_tokens": limit, "sampling_seed": seed}
        request = {"return_logprob": True, "return_prompt_token_ids": True}
        return {"input_ids": prompt, "sampling_params": sampling, **request, **fields}
    model = {"model": engine.model}
    if wire == "generate":
        sampling |= {"max_tokens": limit, "seed": seed, "logprobs": 0}
        request = {"return_token_ids": True}
        return {
            **model,
            "token_ids": prompt,
            "sampling_params": sampling,
            **request,
            **usage,
            **fields,
        }
    common = {**model, **sampling, "max_tokens": limit, "seed": seed, "return_token_ids": True}
    if wire == "chat":
        return {**common, "messages": MESSAGES, "logprobs": True, **usage, **fields}
    if wire == "fireworks":
        return {**common, "prompt": prompt, "logprobs": True, "raw_output": True, **fields}
    return {**common, "prompt": prompt, "logprobs": 0, **usage, **fields}


async def send(
    engine: FakeEngine,
    path: str,
    request: dict[str, Any],
    *,
    request_id: str = "r",
    until: Callable[[bytes], bool] | None = None,
    seconds: float = 60,
) -> Answer:
    """`until` ends the reading early, and leaves."""
    answer = Answer()
    timeout = aiohttp.ClientTimeout(total=seconds)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.post(
                f"{engine.url}{path}", json=request, headers={"X-Request-Id": request_id}
            ) as response,
        ):
            answer.status = response.status
            async for read in response.content.iter_any():
                answer.body += read
                if until is not None and until(answer.body):
                    response.close()
                    break
    except BROKEN as error:
        answer.broke = error
    return answer


def ask(engine: FakeEngine, wire: str, *, request_id: str = "r", **fields: Any) -> Answer:
    request = body(engine, wire, **fields)
    return asyncio.run(send(engine, PATHS[wire], request, request_id=request_id))


class Sampled(Struct):
    """What a wire said was sampled, in one form for all of them."""

    ids: list[int] = []
    logprobs: list[float] = []
    text: str = ""
    finish: str | None = None
    prompt: list[int] | None = None


def sampled(wire: str, answers: list[Any]) -> Sampled:
    """Of the events of a stream, or of one plain answer. SGLang's repeat what came before."""
    result = Sampled([], [])
    for answer in answers:
        if wire == "sglang":
            _take_sglang(result, answer)
        elif answer["choices"]:
            _take_choice(result, answer)
    return result


def _take_sglang(result: Sampled, answer: Any) -> None:
    meta = answer["meta_info"]
    result.ids, result.text = answer["output_ids"], answer["text"]
    result.logprobs = [logprob for logprob, _, _ in meta["output_token_logprobs"]]
    result.finish = meta["finish_reason"] and meta["finish_reason"]["type"]
    result.prompt = answer["prompt_token_ids"]


def _take_choice(result: Sampled, answer: Any) -> None:
    choice = answer["choices"][0]
    result.ids += choice.get("token_ids") or []
    result.finish = choice["finish_reason"]
    message = choice.get("delta") or choice.get("message") or {}
    result.text += choice.get("text") or message.get("content") or ""
    prompt = choice.get("prompt_token_ids") or answer.get("prompt_token_ids")
    result.prompt = result.prompt or prompt
    logprobs = choice["logprobs"] or {"content": []}
    if "content" in logprobs:
        result.logprobs += [item["logprob"] for item in logprobs["content"]]
    else:
        result.logprobs += logprobs["token_logprobs"]
