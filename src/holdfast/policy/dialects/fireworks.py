"""Fireworks' `/v1/completions`, with ids and logprobs side by side in `logprobs.content`.

Training needs the logprob under the distribution that was sampled from (`sampling_logprob`). An
answer of an older deployment has only `logprob`.
"""

import msgspec
from msgspec import Struct

from holdfast.policy.dialects.completions import OWNERS
from holdfast.policy.dialects.dialect import (
    NULL,
    ChoicesDialect,
    CompletionChoice,
    InvalidAnswer,
    Kind,
    Piece,
    UnknownEngine,
    UsageBody,
    add_usage,
    check_token_ids,
    drop_none,
    only_choice,
    openai_fields,
)
from holdfast.policy.policy import Request


class _Token(Struct):
    token_id: int | None = None
    logprob: float | None = None
    sampling_logprob: float | None = None


class _Logprobs(Struct):
    content: list[_Token] | None = None


class _Choice(CompletionChoice):
    logprobs: _Logprobs | None = None


class _Answer(Struct):
    model: str
    choices: list[_Choice]
    usage: UsageBody | None = None


class Fireworks(ChoicesDialect):
    kind = Kind.FIREWORKS
    path = "/v1/completions"
    lacks = ("stop_token_ids", "routed_experts")
    takes_structure = ends_reasoning = False
    decoder = msgspec.json.Decoder(_Answer)

    async def may_be_spoken_by(self, engine: UnknownEngine) -> bool:
        owner = engine.described.owner
        return "fireworks" in owner or ("fireworks.ai" in engine.url and owner not in OWNERS)

    def body(self, request: Request) -> dict[str, object]:
        return drop_none(
            {
                **openai_fields(request),
                "prompt": request.prompt_json,
                "logprobs": True,
                "return_token_ids": True,
            }
        )

    def read(self, answer: _Answer) -> Piece:
        choice = only_choice(answer.choices)
        if choice.text and choice.token_ids is None and choice.logprobs is None:
            raise InvalidAnswer("it has text but no token_ids (return_token_ids was asked for)")
        content = choice.logprobs.content if choice.logprobs else None
        if content and len({part.sampling_logprob is None for part in content}) > 1:
            raise InvalidAnswer("some of its tokens have no sampling_logprob")
        ids = choice.token_ids
        if content is not None:
            named = [item.token_id for item in content]
            if ids is None and None not in named:
                ids = [entry for entry in named if entry is not None]
            elif ids is not None:
                check_token_ids(named, ids)
        piece = Piece(
            ids=ids,
            logprobs=None if content is None else [_logprob(token) for token in content],
            finish_reason=choice.finish_reason,
            model=answer.model,
            prompt=None if (prompt := choice.prompt_token_ids) == NULL else prompt,
        )
        return add_usage(piece, answer.usage)


def _logprob(token: _Token) -> float:
    value = token.logprob if token.sampling_logprob is None else token.sampling_logprob
    if value is None:
        raise InvalidAnswer("a token has no logprob")
    return value
