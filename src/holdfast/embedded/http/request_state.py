"""A request that is being answered: its generations and what its answers have in common."""

import time
from collections.abc import Sequence
from functools import lru_cache
from importlib.metadata import version
from typing import Any, Protocol

from holdfast.embedded.http.parse_request import ParsedRequest
from holdfast.embedded.model.load import LoadedModel
from holdfast.embedded.scheduler.generation import Drawn, Generation, TokenDelta

FINGERPRINT = f"holdfast-{version('holdfast')}"
_LEAST_LOGPROB = -9999.0
"""JSON has no infinity; this is what vLLM writes for a token outside of top_p."""


class RequestState:
    """One request. Choice i of the answer is generation i."""

    def __init__(self, asked: ParsedRequest, model: LoadedModel, *, served: str, request_id: str):
        self.asked = asked
        self.model = model
        self.served = served
        self.id = request_id
        self.created = int(time.time())
        self.generations: list[Generation] = []

    @property
    def choices(self) -> int:
        return len(self.asked.prompts) * self.asked.n

    def head(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.served}

    def prompt(self, choice: int) -> list[int]:
        return self.asked.prompts[choice // self.asked.n]

    def usage(self, *, details: bool = True) -> dict[str, Any]:
        prompts = sum(map(len, self.asked.prompts))
        sampled = sum(len(one.drawn) for one in self.generations)
        counts: dict[str, Any] = {
            "prompt_tokens": prompts,
            "total_tokens": prompts + sampled,
            "completion_tokens": sampled,
        }
        if details:
            counts |= {"prompt_tokens_details": None, "completion_tokens_details": None}
        return counts

    def piece(self, token: int) -> str:
        """A token's own text; "" for one that is only part of a character."""
        return _piece(self.model, token)


class ResponseShape(Protocol):
    """How one endpoint words its answers. A shape is made for one request."""

    def whole(self) -> dict[str, Any]:
        """The answer, when all generations are finished."""

    def opening(self) -> list[dict[str, Any]]:
        """What a stream says before the first token."""

    def chunks(self, choice: int, delta: TokenDelta) -> list[dict[str, Any]]:
        """What a stream says about new tokens of one choice."""

    def closing(self) -> dict[str, Any]:
        """The usage, after the last token."""


def spans(one: Generation | TokenDelta) -> list[dict[str, Any]]:
    """Which weights sampled which tokens, up to here."""
    return [{"version": s.version, "start": s.start, "end": s.end} for s in one.spans]


def shown(logprob: float) -> float:
    return max(logprob, _LEAST_LOGPROB)


def candidates(drawn: Drawn, count: int) -> list[tuple[int, float, int]]:
    """Token, logprob, rank: the sampled one first, then the most likely others; `count` in all,
    as vLLM cuts them."""
    others = [(c.token, shown(c.logprob), c.rank) for c in drawn.top if c.token != drawn.token]
    return [(drawn.token, shown(drawn.logprob), drawn.rank), *others][:count]


def listed(drawn: Sequence[Drawn]) -> list[int]:
    return [one.token for one in drawn]


@lru_cache(maxsize=1 << 16)
def _decoded(decode: Any, token: int) -> str:
    text = str(decode([token], skip_special_tokens=False))
    return "" if "\ufffd" in text else text


def _piece(model: LoadedModel, token: int) -> str:
    return _decoded(model.tokenizer.backend_tokenizer.decode, token)
