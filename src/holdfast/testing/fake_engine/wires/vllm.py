"""vLLM's sampling endpoints, plain and streamed, and `/v1/chat/completions` of a plain OpenAI-like
server, which knows no token ids and ignores a request for them.

`ByteRenderer` renders the messages and parses the tool calls. Among the candidates for a token,
only the sampled one is listed.
"""

import hashlib
from collections.abc import Collection, Sequence
from typing import Any

import msgspec
from msgspec import Struct, structs

from holdfast.engine_api import errors
from holdfast.engine_api.requests import (
    ChatRequest,
    CompletionsRequest,
    GenerateRequest,
    GenerateSamplingParams,
    OpenAIRequest,
    SamplingFields,
    check_model,
    decode,
    ends_with_usage,
)
from holdfast.engine_api.responses import (
    ChatShape,
    ChoiceOutput,
    CompletionsShape,
    GenerateShape,
    JsonObject,
    ResponseShape,
    TokenScore,
    usage,
)
from holdfast.policy.rendering.renderer import ByteRenderer
from holdfast.records.message import IMAGE, Message, system
from holdfast.testing.fake_engine.generation import FakePiece
from holdfast.testing.fake_engine.json_output import required_schema
from holdfast.testing.fake_engine.options import FakeOptions
from holdfast.testing.fake_engine.request import FakeRequest, FakeWire, limits, text_prompt
from holdfast.testing.fake_engine.tokens import TEXT
from holdfast.testing.fake_engine.wires.experts import npy_text
from holdfast.testing.fake_engine.wires.tool_calls import StreamedToolCalls, parse_tool_calls

FINGERPRINT = "holdfast-fake"
_EFFORT = "Reasoning: "
_CHAT_TEXT = ["" if text == "\ufffd" else text for text in TEXT]
"""The texts of tokens in a chat. A token that is only part of a character has no text."""
_VLLM_ONLY = frozenset(
    ("annotations", "audio", "function_call", "reasoning", "stop_reason", "token_ids",
     "routed_experts", "prompt_logprobs", "prompt_token_ids", "prompt_text", "kv_transfer_params",
     "ec_transfer_params", "metrics")
)  # fmt: skip
_DETAILS = ("prompt_tokens_details", "completion_tokens_details")


class _VllmWire(FakeWire):
    shape: type[ResponseShape]
    texts = TEXT

    def whole(self, job: FakeRequest, piece: FakePiece) -> JsonObject:
        tokens = self._usage(job, piece.sampled)
        return self._shape(job).whole([self._output(job, piece)], tokens)

    def chunks(self, job: FakeRequest, piece: FakePiece) -> Sequence[JsonObject]:
        return [self._shape(job).chunk(self._output(job, piece))]

    def closing(self, job: FakeRequest, tokens: int) -> Sequence[JsonObject]:
        return self._shape(job).closing(self._usage(job, tokens))

    def _usage(self, job: FakeRequest, tokens: int) -> JsonObject:
        usage_fields = usage(len(job.prompt), tokens)
        if self.options.counts == "details":
            usage_fields["prompt_tokens_details"] = {"cached_tokens": len(job.prompt) // 2}
            usage_fields["completion_tokens_details"] = {"reasoning_tokens": tokens // 2}
        return usage_fields

    def _shape(self, job: FakeRequest) -> ResponseShape:
        return self.shape(
            request_id=job.id,
            model=job.model,
            created=job.created,
            fingerprint=FINGERPRINT,
            usage_chunk=job.usage,
        )

    def _output(self, job: FakeRequest, piece: FakePiece) -> ChoiceOutput:
        return ChoiceOutput(
            text=piece.text,
            finish_reason=piece.finish_reason,
            stop_reason=piece.stop,
            scores=scores(piece, self.texts) if job.logprobs else None,
            text_offset=piece.start,
            token_ids=piece.ids if job.token_ids else None,
            prompt_token_ids=job.prompt if job.prompt_ids and piece.start == 0 else None,
            routed_experts=self._experts(job, piece),
        )

    def _experts(self, job: FakeRequest, piece: FakePiece) -> str | None:
        if piece.finish_reason is None:
            return None
        return npy_text(self.options, job, tokens=piece.start + piece.sampled)

    def _request(
        self,
        body: OpenAIRequest | GenerateRequest,
        params: SamplingFields,
        *,
        max_tokens: int,
        **fields: Any,
    ) -> FakeRequest:
        ids = bool(body.return_token_ids)
        if params.thinking_token_budget is not None and not self.options.thinking_budgets:
            raise errors.no_thinking_budget()
        values = {
            "model": self.options.model,
            "limits": limits(max_tokens, params.stop, params.stop_token_ids),
            "seed": params.seed,
            "temperature": 1.0 if params.temperature is None else params.temperature,
            "top_p": 1.0 if params.top_p is None else params.top_p,
            "thinking_token_budget": params.thinking_token_budget,
            "stream": bool(body.stream),
            "usage": ends_with_usage(body),
            "token_ids": ids,
            "prompt_ids": ids,
        }
        return self.check(FakeRequest(**{**values, **fields}), n=params.n)


class FakeCompletionsRequest(CompletionsRequest, kw_only=True):
    routed_experts_prompt_start: int = 0


class CompletionsWire(_VllmWire):
    """vLLM's completions. Only whole answers have routed experts."""

    shape = CompletionsShape

    def read(self, raw: bytes, request_id: str) -> FakeRequest:
        body = decode(raw, FakeCompletionsRequest)
        return self._request(
            body,
            body,
            id=request_id,
            model=self.served(body.model),
            prompt=text_prompt(body.prompt),
            max_tokens=16 if body.max_tokens is None else body.max_tokens,
            schema=required_schema(body.response_format, body.structured_outputs),
            logprobs=body.logprobs is not None,
            experts_from=None if body.stream else body.routed_experts_prompt_start,
        )

    def _output(self, job: FakeRequest, piece: FakePiece) -> ChoiceOutput:
        output = super()._output(job, piece)
        if job.token_ids:
            # The logprobs name tokens by their text, so they cannot contradict the ids.
            output.token_ids = piece.scored
        return output


class FakeGenerateSamplingParams(GenerateSamplingParams, kw_only=True):
    routed_experts_prompt_start: int = 0


class FakeGenerateRequest(GenerateRequest, kw_only=True):
    sampling_params: FakeGenerateSamplingParams | None = None


class GenerateWire(_VllmWire):
    """vLLM's `generate`. `enabled` says whether the server was started with `--enable-scale-out`.

    Only the last chunk of a stream has the versions, so a stream that is cut reports no versions.
    """

    shape = GenerateShape

    def __init__(self, options: FakeOptions, adapters: Collection[str] = (), *, enabled: bool):
        super().__init__(options, adapters)
        self._enabled = enabled

    def read(self, raw: bytes, request_id: str) -> FakeRequest:
        if not self._enabled:
            raise errors.scale_out_disabled()
        body = decode(raw, FakeGenerateRequest)
        params = body.sampling_params or FakeGenerateSamplingParams()
        return self._request(
            body,
            params,
            id=request_id,
            model=self.served(body.model),
            prompt=body.token_ids,
            max_tokens=16 if params.max_tokens is None else params.max_tokens,
            schema=required_schema(None, params.structured_outputs),
            logprobs=params.logprobs is not None,
            token_ids=True,
            experts_from=params.routed_experts_prompt_start,
        )

    def _output(self, job: FakeRequest, piece: FakePiece) -> ChoiceOutput:
        output = super()._output(job, piece)
        output.weight_versions = None if piece.finish_reason is None else piece.versions
        output.scores = output.scores and [
            msgspec.structs.replace(score, top=(score,)) for score in output.scores
        ]
        return output


class _Messages(Struct):
    messages: list[Message]


def _messages(body: ChatRequest) -> list[Message]:
    try:
        return msgspec.convert({"messages": body.messages}, _Messages).messages
    except msgspec.ValidationError as error:
        raise errors.undecodable(error) from error


def _visible(message: Message) -> str:
    """Returns the content of a message, with a digest in place of each image."""
    if isinstance(message.content, str):
        return message.content
    urls = iter(message.images)
    return "".join(
        f"<image {hashlib.sha256(next(urls).encode()).hexdigest()[:16]}>"
        if part.get("type") == IMAGE
        else str(part.get("text", ""))
        for part in message.content or ()
    )


class ChatWire(_VllmWire):
    """Chat completions. `vllm` says whether the answers have vLLM's extensions of OpenAI's
    format."""

    shape = ChatShape
    texts = _CHAT_TEXT

    def __init__(self, options: FakeOptions, *, vllm: bool):
        super().__init__(options)
        self._vllm = vllm
        self._renderer = ByteRenderer()
        self._text = ""
        self._parsed = StreamedToolCalls("", [])

    def read(self, raw: bytes, request_id: str) -> FakeRequest:
        body = decode(raw, ChatRequest)
        check_model(body.model, self.options.model)
        if self.options.reasoning_model and body.max_tokens is not None:
            raise errors.older_limit()
        messages = _messages(body)
        images = tuple(url for message in messages for url in message.images)
        if images and not self.options.images:
            raise errors.no_images(body.model)
        prompt = self._prompt(body, messages)
        room = max(1, self.options.max_model_len - len(prompt))
        ids = self._vllm and bool(body.return_token_ids)
        structured = body.structured_outputs if self._vllm else None
        return self._request(
            body,
            body,
            id=request_id,
            prompt=prompt,
            max_tokens=body.max_completion_tokens or body.max_tokens or room,
            schema=required_schema(body.response_format, structured),
            effort=body.reasoning_effort,
            images=images,
            logprobs=bool(body.logprobs),
            token_ids=ids,
            prompt_ids=ids,
            tools=bool(body.tools) and body.tool_choice != "none",
        )

    def _prompt(self, body: ChatRequest, messages: list[Message]) -> list[int]:
        messages = [structs.replace(message, content=_visible(message)) for message in messages]
        if body.reasoning_effort is not None:
            # As in templates that support efforts. So another effort gives another sample.
            messages.insert(0, system(_EFFORT + body.reasoning_effort))
        return list(self._renderer.render(messages, body.tools or []))

    def whole(self, job: FakeRequest, piece: FakePiece) -> JsonObject:
        answer = super().whole(job, piece)
        if self.options.counts == "nothing":
            del answer["usage"]
        return self._plain(answer)

    def _output(self, job: FakeRequest, piece: FakePiece) -> ChoiceOutput:
        output = super()._output(job, piece)
        if not job.tools:
            return output
        if job.stream:
            self._add_deltas(output, job)
        else:
            self._add_calls(output, job)
        called = output.tool_calls or self._parsed.calls
        if called and output.finish_reason == "stop":
            output.finish_reason = "tool_calls"
        return output

    def _add_calls(self, output: ChoiceOutput, job: FakeRequest) -> None:
        reply = self._renderer.parse(list(output.text.encode()))
        if not reply.tool_calls:
            return
        output.text = reply.text
        output.tool_calls = [
            {
                "id": _call_id(job, n),
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for n, call in enumerate(reply.tool_calls)
        ]

    # --- streams

    def for_stream(self) -> "ChatWire":
        return ChatWire(self.options, vllm=self._vllm)

    def opening(self, job: FakeRequest) -> Sequence[JsonObject]:
        """Returns the first event, with the role."""
        events = self._shape(job).opening(0, job.prompt if job.prompt_ids else None)
        return [self._plain(event) for event in events]

    def chunks(self, job: FakeRequest, piece: FakePiece) -> Sequence[JsonObject]:
        """Returns one chunk for the piece, even if the piece has only ids or logprobs. If the piece
        has nothing to report, returns no chunk."""
        output = self._output(job, piece)
        shows = output.text or output.tool_calls or output.finish_reason
        if not (shows or job.token_ids or job.logprobs):
            return ()
        return [self._plain(self._shape(job).chunk(output))]

    def _add_deltas(self, output: ChoiceOutput, job: FakeRequest) -> None:
        self._text += output.text
        before = self._parsed
        self._parsed = parse_tool_calls(self._text, ended=output.finish_reason is not None)
        output.text = self._parsed.content[len(before.content) :]
        output.tool_calls = _call_deltas(job, before, self._parsed)

    def _plain(self, value: JsonObject) -> JsonObject:
        """Returns the value unchanged for vLLM. For any other server, returns it without vLLM's
        extensions."""
        return value if self._vllm else _without_extensions(value)


def _without_extensions(value: JsonObject) -> JsonObject:
    return {
        name: _plain_value(inner)
        for name, inner in value.items()
        if name not in _VLLM_ONLY and not (name in _DETAILS and inner is None)
    }


def _plain_value(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain_value(item) for item in value]
    return _without_extensions(value) if isinstance(value, dict) else value


def _call_deltas(
    job: FakeRequest, before: StreamedToolCalls, now: StreamedToolCalls
) -> list[JsonObject]:
    deltas: list[JsonObject] = []
    for index, (name, arguments) in enumerate(now.calls):
        function: dict[str, str] = {}
        delta: JsonObject = {"index": index, "function": function}
        sent = ""
        if index < len(before.calls):
            sent = before.calls[index][1]
        else:
            function["name"] = name
            delta = {"id": _call_id(job, index), "type": "function", **delta}
        if more := arguments[len(sent) :]:
            function["arguments"] = more
        if function:
            deltas.append(delta)
    return deltas


def _call_id(job: FakeRequest, index: int) -> str:
    return f"chatcmpl-tool-{job.id}-{index}"


def scores(piece: FakePiece, texts: Sequence[str] = TEXT) -> list[TokenScore]:
    """Returns the score of each token. If a fault makes the answer wrong, there may be fewer
    logprobs than tokens."""
    pairs = zip(piece.scored, piece.logprobs, strict=False)
    return [TokenScore(token, texts[token], logprob) for token, logprob in pairs]
