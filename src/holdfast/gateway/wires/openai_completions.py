"""OpenAI's legacy completions, `/v1/completions`: a bare prompt, as text or as tokens."""

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Annotated, cast

import msgspec
from msgspec import Meta

from holdfast.gateway.exchange import Answer, Ask, Choice, Refused
from holdfast.gateway.wires import openai_errors, sse
from holdfast.gateway.wires.openai_chat import least_logprob, usage
from holdfast.gateway.wires.openai_errors import unsupported_value, wrong
from holdfast.gateway.wires.openai_parameters import (
    MOST_TOKENS,
    NEUTRAL,
    Parameters,
    only_neutral,
)

_DEFAULT_MAX_TOKENS = 16
"""As this endpoint has always had it."""

_Token = Annotated[int, Meta(ge=0, le=MOST_TOKENS)]
_Prompt = str | list[str | _Token | list[_Token]]


class _Body(Parameters, kw_only=True, forbid_unknown_fields=True):
    prompt: _Prompt
    logprobs: Annotated[int, Meta(ge=0)] | None = None

    # Followed only where they ask for nothing: see _NEUTRAL.
    echo: object = None
    suffix: object = None
    add_special_tokens: object = None


_NEUTRAL: dict[str, tuple[object, ...]] = {
    **NEUTRAL,
    "echo": (False,),
    "suffix": ("",),
    "add_special_tokens": (True,),
}

_DECODER = msgspec.json.Decoder(_Body)


class OpenAICompletions:
    """The wire."""

    def ask(self, body: bytes) -> Ask:
        told = openai_errors.decoded(_DECODER, body)
        only_neutral(told, _NEUTRAL)
        if told.logprobs is not None and told.logprobs > 1:
            raise unsupported_value(
                "logprobs", told.logprobs, "only sampled tokens have logprobs; send 0 or 1."
            )
        text, ids = _prompt(told.prompt)
        return Ask(
            model=told.model,
            messages=(),
            max_tokens=told.max_tokens or _DEFAULT_MAX_TOKENS,
            temperature=told.temperature,
            top_p=told.top_p,
            stop=told.stops,
            n=told.n or 1,
            stream=bool(told.stream),
            logprobs=told.logprobs is not None,
            include_usage=told.include_usage,
            text=text,
            prompt_ids=ids,
        )

    def answer(self, ask: Ask, answer: Answer) -> bytes:
        choices = [
            _choice(
                i,
                one.message.text,
                logprobs=_logprobs(one, range(len(one.tokens))) if ask.logprobs else None,
                finish_reason=_finish_reason(one),
            )
            for i, one in enumerate(answer.choices)
        ]
        return msgspec.json.encode({**_head(answer), "choices": choices, "usage": usage(answer)})

    def events(self, ask: Ask, answer: Answer) -> list[bytes]:
        head = _head(answer)
        rest = {"usage": None} if ask.include_usage else {}
        said = [
            {**head, "choices": [chunk], **rest}
            for index, choice in enumerate(answer.choices)
            for chunk in _chunks(index, choice, ask=ask)
        ]
        if ask.include_usage:
            said.append({**head, "choices": [], "usage": usage(answer)})
        return [*(sse.data(msgspec.json.encode(one)) for one in said), sse.DONE]

    def keep_alive(self) -> bytes:
        return sse.KEEP_ALIVE

    def refusal(self, refused: Refused) -> bytes:
        return openai_errors.encoded(refused)


def _prompt(prompt: _Prompt) -> tuple[str | None, tuple[int, ...] | None]:
    """The text or the tokens. One prompt: several are several calls."""
    if prompt in ("", [], [""], [[]]):
        raise wrong("Invalid 'prompt': it is empty.", param="prompt")
    if isinstance(prompt, str):
        return prompt, None
    if set(map(type, prompt)) == {int}:
        return None, tuple(cast("list[int]", prompt))
    if len(prompt) > 1:
        raise wrong(
            "Unsupported value: 'prompt' has several prompts; send one in each call.",
            param="prompt",
            code="unsupported_value",
        )
    (one,) = prompt
    return (one, None) if isinstance(one, str) else (None, tuple(cast("list[int]", one)))


def _finish_reason(choice: Choice) -> str:
    """A bare prompt has no tools: whatever its text looks like, it ended by itself or was cut."""
    return "length" if choice.finish_reason == "length" else "stop"


def _head(answer: Answer) -> dict[str, object]:
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
    return {
        "index": index,
        "text": text,
        "logprobs": logprobs,
        "finish_reason": finish_reason,
    }


def _logprobs(choice: Choice, places: range) -> dict[str, object]:
    """Of the tokens at these places; the likeliest others are not known, which is said as null."""
    offsets = _offsets(choice.tokens)
    return {
        "tokens": [choice.tokens[i] for i in places],
        "token_logprobs": [least_logprob(choice.logprobs[i]) for i in places],
        "text_offset": [offsets[i] for i in places],
        "top_logprobs": None,
    }


def _offsets(tokens: Sequence[str]) -> list[int]:
    """Where each token begins in the text of the completion."""
    return list(accumulate((len(one) for one in tokens), initial=0))


def _chunks(index: int, choice: Choice, *, ask: Ask) -> Iterator[dict[str, object]]:
    text = choice.message.text
    spelled = sse.spelled(choice.tokens, text) if ask.logprobs else None
    apart = _logprobs(choice, range(len(choice.tokens))) if ask.logprobs and not spelled else None
    if spelled is None:
        for piece in sse.pieces(text):
            yield _choice(index, piece)
    for piece, places in spelled or ():
        yield _choice(index, piece, logprobs=_logprobs(choice, places))
    yield _choice(index, "", logprobs=apart, finish_reason=_finish_reason(choice))
