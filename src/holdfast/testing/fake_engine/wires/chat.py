"""`/v1/chat/completions`, plain and streamed: vLLM's as recorded from 0.32, or a plain OpenAI-like
server's, which knows no token ids and ignores who asks for them.

Messages are rendered by `ByteRenderer`, and tool calls read by it.
"""

from collections.abc import Sequence
from typing import Literal

import msgspec
from msgspec import Struct

from holdfast.policy.rendering.renderer import ByteRenderer
from holdfast.records.message import Message, system
from holdfast.testing.fake_engine import errors as refusals
from holdfast.testing.fake_engine.generation import FakePiece
from holdfast.testing.fake_engine.json_output import ResponseFormat
from holdfast.testing.fake_engine.options import FakeOptions
from holdfast.testing.fake_engine.request import (
    FakeRequest,
    FakeStreamOptions,
    checked,
    decoded,
    limits,
    only_one,
)
from holdfast.testing.fake_engine.tokens import TEXT
from holdfast.testing.fake_engine.wires.completions import FINGERPRINT, usage_of, whole_usage
from holdfast.testing.fake_engine.wires.tool_calls import StreamedToolCalls, shown

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


class ChatRequest(Struct):
    """A request. What servers understand beyond this is ignored."""

    model: str
    messages: list[Message]
    tools: list[dict[str, object]] | None = None
    tool_choice: str | dict[str, object] | None = None
    max_completion_tokens: int | None = None
    max_tokens: int | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    logprobs: bool | None = None
    return_token_ids: bool | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    n: int = 1
    response_format: ResponseFormat | None = None
    reasoning_effort: Effort | None = None
    stream: bool | None = None
    stream_options: FakeStreamOptions | None = None


_EFFORT = "Reasoning: "


class ChatWire:
    """`vllm`: with its extensions of OpenAI's shapes."""

    def __init__(self, options: FakeOptions, *, vllm: bool):
        self._options = options
        self._vllm = vllm
        self._renderer = ByteRenderer()
        self._decoder = msgspec.json.Decoder(ChatRequest)

    def read(self, raw: bytes, request_id: str) -> FakeRequest:
        body = decoded(self._decoder, raw)
        if body.model != self._options.model:
            raise refusals.unknown_model(body.model, self._options.model)
        only_one(body.n)
        tools = body.tools or []
        # As templates do that know it, and so that another effort is another sample.
        told = [] if body.reasoning_effort is None else [system(_EFFORT + body.reasoning_effort)]
        prompt = list(self._renderer.render([*told, *body.messages], tools))
        room = self._options.max_model_len - len(prompt)
        wanted = body.max_completion_tokens or body.max_tokens or max(1, room)
        job = FakeRequest(
            id=request_id,
            model=body.model,
            prompt=prompt,
            limits=limits(wanted, body.stop, body.stop_token_ids),
            seed=body.seed,
            temperature=body.temperature,
            top_p=body.top_p,
            effort=body.reasoning_effort,
            schema=body.response_format.wanted() if body.response_format else None,
            stream=bool(body.stream),
            usage=body.stream_options is not None and body.stream_options.include_usage,
            logprobs=bool(body.logprobs),
            token_ids=self._vllm and bool(body.return_token_ids),
            tools=bool(tools) and body.tool_choice != "none",
        )
        return checked(job, max_model_len=self._options.max_model_len)

    def request_id(self, raw: bytes) -> str | None:
        return None

    def whole(self, job: FakeRequest, piece: FakePiece) -> object:
        message, called = self._message(job, piece)
        choice: dict[str, object] = {
            "index": 0,
            "message": message,
            "logprobs": logprobs_of(piece) if job.logprobs else None,
            "finish_reason": finish_reason(piece, called=called),
        }
        answer: dict[str, object] = {**_head(job, "chat.completion"), "choices": [choice]}
        answer |= {"service_tier": None, "system_fingerprint": FINGERPRINT}
        if not self._vllm:
            return {**answer, "usage": usage_of(job, piece.sampled)}
        choice |= {
            "stop_reason": piece.stop,
            "token_ids": piece.ids if job.token_ids else None,
            "routed_experts": None,
        }
        return {
            **answer,
            "usage": whole_usage(job, piece),
            "prompt_logprobs": None,
            "prompt_token_ids": job.prompt if job.token_ids else None,
            "prompt_text": None,
            "kv_transfer_params": None,
            "ec_transfer_params": None,
            "metrics": None,
        }

    def _message(self, job: FakeRequest, piece: FakePiece) -> tuple[object, bool]:
        said = self._renderer.parse(list(piece.text.encode())) if job.tools else None
        calls = said.tool_calls if said is not None else ()
        message: dict[str, object] = {"role": "assistant", "content": piece.text, "refusal": None}
        if said is not None and calls:
            message["content"] = said.text or None
        if self._vllm:
            message |= {"annotations": None, "audio": None, "function_call": None}
        if calls:
            message["tool_calls"] = [
                {
                    "id": f"chatcmpl-tool-{job.id}-{n}",
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments},
                }
                for n, call in enumerate(calls)
            ]
        if self._vllm:
            message["reasoning"] = None
        return message, bool(calls)

    def events(self) -> "_Events":
        return _Events(self._vllm)

    def error(self, refusal: refusals.FakeRequestRejected) -> object:
        return {"error": refusal.error}


class _Events:
    """The role first; then a chunk for each piece, also for those that show nothing."""

    def __init__(self, vllm: bool):
        self._vllm = vllm
        self._text = ""
        self._shown = StreamedToolCalls("", [])

    def opening(self, job: FakeRequest) -> Sequence[object]:
        delta = {"role": "assistant", "content": ""}
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}
        chunk: dict[str, object] = {**_head(job, "chat.completion.chunk"), "choices": [choice]}
        if self._vllm:
            chunk["prompt_token_ids"] = job.prompt if job.token_ids else None
            chunk["prompt_text"] = None
        return [chunk]

    def piece(self, job: FakeRequest, piece: FakePiece) -> Sequence[object]:
        delta = self._delta(job, piece)
        ended = piece.finish_reason is not None
        if not (delta or ended or job.token_ids or job.logprobs):
            return ()
        choice: dict[str, object] = {
            "index": 0,
            "delta": delta,
            "logprobs": logprobs_of(piece) if job.logprobs else None,
            "finish_reason": finish_reason(piece, called=bool(self._shown.calls)),
        }
        if self._vllm and ended:
            choice["stop_reason"] = piece.stop
        if self._vllm:
            choice["token_ids"] = piece.ids if job.token_ids else None
        chunk: dict[str, object] = {**_head(job, "chat.completion.chunk"), "choices": [choice]}
        if ended and not job.usage:
            chunk["system_fingerprint"] = FINGERPRINT
        return [chunk]

    def closing(self, job: FakeRequest, tokens: int) -> Sequence[object]:
        if not job.usage:
            return ()
        chunk = {**_head(job, "chat.completion.chunk"), "choices": []}
        return [{**chunk, "usage": usage_of(job, tokens), "system_fingerprint": FINGERPRINT}]

    def _delta(self, job: FakeRequest, piece: FakePiece) -> dict[str, object]:
        if not job.tools:
            return {"content": piece.text} if piece.text else {}
        self._text += piece.text
        before, ended = self._shown, piece.finish_reason is not None
        self._shown = shown(self._text, ended=ended)
        calls = _call_deltas(job, before, self._shown)
        new = self._shown.content[len(before.content) :]
        if calls:
            return {"content": new or None, "tool_calls": calls}
        return {"content": new} if new else {}


def _call_deltas(
    job: FakeRequest, before: StreamedToolCalls, now: StreamedToolCalls
) -> list[object]:
    deltas: list[object] = []
    for index, (name, arguments) in enumerate(now.calls):
        function: dict[str, str] = {}
        delta: dict[str, object] = {"index": index, "function": function}
        told = ""
        if index < len(before.calls):
            told = before.calls[index][1]
        else:
            function["name"] = name
            delta = {"id": f"chatcmpl-tool-{job.id}-{index}", "type": "function", **delta}
        if more := arguments[len(told) :]:
            function["arguments"] = more
        if function:
            deltas.append(delta)
    return deltas


def finish_reason(piece: FakePiece, *, called: bool) -> str | None:
    return "tool_calls" if called and piece.finish_reason == "stop" else piece.finish_reason


def logprobs_of(piece: FakePiece) -> object:
    """As vLLM does: a token that is a part of a character has no text and no bytes."""
    content: list[object] = []
    # Where the engine lies, there may be fewer logprobs than tokens.
    for token, logprob in zip(piece.scored, piece.logprobs, strict=False):
        text = "" if TEXT[token] == "\ufffd" else TEXT[token]
        content.append(
            {"token": text, "logprob": logprob, "bytes": list(text.encode()), "top_logprobs": []}
        )
    return {"content": content}


def _head(job: FakeRequest, kind: str) -> dict[str, object]:
    return {
        "id": f"chatcmpl-{job.id}",
        "object": kind,
        "created": job.created,
        "model": job.model,
    }
