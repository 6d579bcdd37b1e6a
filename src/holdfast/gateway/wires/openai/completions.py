"""OpenAI's legacy completions, `/v1/completions`: a bare prompt, as text or as tokens."""

from collections.abc import Iterator
from itertools import accumulate
from typing import Annotated, cast

import msgspec
from msgspec import Meta

from holdfast.gateway.protocol.messages import (
    Answer,
    AnswerChoice,
    AnswerDelta,
    GenerationRequest,
    Opening,
    RequestLookup,
)
from holdfast.gateway.wires import sse
from holdfast.gateway.wires.openai import errors
from holdfast.gateway.wires.openai.chat import (
    CompletionStream,
    OpenAIWire,
    bound_logprob,
    token_ids,
    usage,
)
from holdfast.gateway.wires.openai.errors import invalid, unsupported, unsupported_value
from holdfast.gateway.wires.openai.parameters import (
    MAX_TOKENS,
    SamplingParameters,
    neutral,
    reject_unless_neutral,
)

_DEFAULT_MAX_TOKENS = 16
"""The default that this endpoint has always had."""

_MAX_CHOICES = 128

_Token = Annotated[int, Meta(ge=0, le=MAX_TOKENS)]
_Prompt = str | list[str | _Token | list[_Token]]


class _Body(SamplingParameters, kw_only=True, frozen=True, forbid_unknown_fields=True):
    prompt: _Prompt
    logprobs: Annotated[int, Meta(ge=0)] | None = None

    # Accepted only with values that change nothing.
    echo: object = neutral(False)
    suffix: object = neutral("")
    add_special_tokens: object = neutral(True)


_DECODER = msgspec.json.Decoder(_Body)


class OpenAICompletions(OpenAIWire):
    """The wire of `/v1/completions`."""

    def parse(self, body: bytes, known: RequestLookup | None = None) -> GenerationRequest:
        request = errors.decode(_DECODER, body)
        reject_unless_neutral(request)
        if request.logprobs is not None and request.logprobs > 1:
            raise unsupported_value(
                "logprobs", request.logprobs, "only sampled tokens have logprobs; send 0 or 1."
            )
        if request.template_kwargs:
            raise unsupported("chat_template_kwargs", "a bare prompt has no template.")
        prompts = _prompts(request.prompt)
        if len(prompts) * (request.n or 1) > _MAX_CHOICES:
            text = f"there can be {_MAX_CHOICES} choices of all prompts together"
            raise invalid(f"Invalid 'prompt': {text}.", param="prompt")
        only = prompts[0] if len(prompts) == 1 else None
        return GenerationRequest(
            model=request.model,
            messages=(),
            max_tokens=request.max_tokens or _DEFAULT_MAX_TOKENS,
            **request.shared_fields,
            thinking_token_budget=request.thinking_token_budget,
            logprobs=request.logprobs is not None,
            text=only if isinstance(only, str) else None,
            prompt_ids=only if isinstance(only, tuple) else None,
            prompts=() if only is not None else prompts,
        )

    def format_answer(self, request: GenerationRequest, answer: Answer) -> bytes:
        choices = [
            _choice(
                i,
                choice.message.text,
                logprobs=_logprobs(choice, range(len(choice.tokens))) if request.logprobs else None,
                finish_reason=_finish_reason(choice),
            )
            | token_ids(request, choice)
            for i, choice in enumerate(answer.choices)
        ]
        return msgspec.json.encode({**_head(answer), "choices": choices, "usage": usage(answer)})

    def stream(self, request: GenerationRequest) -> "TextStream":
        return TextStream(request)


def _prompts(prompt: _Prompt) -> tuple[str | tuple[int, ...], ...]:
    """Returns the prompts, each a text or a tuple of tokens."""
    kinds = {str} if isinstance(prompt, str) else set(map(type, prompt))
    if kinds == {int}:
        return (tuple(cast("list[int]", prompt)),)
    several = [prompt] if isinstance(prompt, str) else prompt
    if len(kinds) > 1:
        raise invalid("Invalid 'prompt': its prompts are not all of one kind.", param="prompt")
    if not several or not all(several):
        raise invalid("Invalid 'prompt': it is empty.", param="prompt")
    return tuple(
        item if isinstance(item, str) else tuple(cast("list[int]", item)) for item in several
    )


def _finish_reason(choice: AnswerChoice) -> str:
    """Returns how a completion ended: by itself or cut. It never ends with a tool call, whatever
    its text looks like, because a raw prompt has no tools."""
    cut = ("length", "content_filter")
    return choice.finish_reason if choice.finish_reason in cut else "stop"


def _head(answer: Answer | Opening) -> dict[str, object]:
    return {
        "id": f"cmpl-{answer.id}",
        "object": "text_completion",
        "created": answer.created,
        "model": answer.model,
        "system_fingerprint": None,
    }


def _choice(
    index: int,
    text: str,
    *,
    logprobs: dict[str, object] | None = None,
    finish_reason: str | None = None,
) -> dict[str, object]:
    return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish_reason}


def _logprobs(choice: AnswerChoice, positions: range | None) -> dict[str, object] | None:
    """Returns the logprobs of the tokens at these positions. The likeliest alternatives are null,
    since they are unknown."""
    if positions is None:
        return None
    offsets = list(accumulate((len(token) for token in choice.tokens), initial=0))
    return {
        "tokens": [choice.tokens[i] for i in positions],
        "token_logprobs": [bound_logprob(choice.logprobs[i]) for i in positions],
        "text_offset": [offsets[i] for i in positions],
        "top_logprobs": None,
    }


class TextStream(CompletionStream):
    """The events of text completions. Each choice has its text and its end."""

    def _head(self, opening: Opening) -> dict[str, object]:
        return _head(opening)

    def _delta(self, delta: AnswerDelta, sent: sse.SentText) -> Iterator[dict[str, object]]:
        yield _choice(delta.index, delta.text)

    def _rest(
        self, index: int, choice: AnswerChoice, sent: sse.SentText
    ) -> Iterator[dict[str, object]]:
        _, text = sent.rest(choice.message)
        pieces, apart = self._pieces(choice, text, sent)
        for piece, positions in pieces:
            yield _choice(index, piece, logprobs=_logprobs(choice, positions))
        end, reason = _logprobs(choice, apart), _finish_reason(choice)
        ended = _choice(index, "", logprobs=end, finish_reason=reason)
        yield ended | token_ids(self._request, choice)
