"""Makes the responses to one request from its generations, whole or token by token.

The shape is vLLM's, with one extension: `weight_versions` in each choice of every endpoint.
"""

import time
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from msgspec.structs import replace

from holdfast.embedded.http.parse_request import ParsedRequest
from holdfast.embedded.http.parse_tool_calls import ToolCallParser
from holdfast.embedded.model.load import LoadedModel
from holdfast.embedded.scheduler.generation import (
    Drawn,
    Finish,
    Generation,
    TokenCandidate,
    TokenDelta,
)
from holdfast.engine_api.responses import (
    ChoiceOutput,
    JsonObject,
    ResponseShape,
    TokenScore,
    usage,
)
from holdfast.version import installed_version

FINGERPRINT = f"holdfast-{installed_version()}"
_LEAST_LOGPROB = -9999.0
"""The value that vLLM writes for a token outside of top_p, because JSON has no infinity."""


class EngineResponse:
    """The response to one request. Choice i is generation i. Set `generations` before reading
    anything."""

    def __init__(
        self,
        request: ParsedRequest,
        model: LoadedModel,
        *,
        served: str,
        request_id: str,
        shape: type[ResponseShape],
    ):
        self.request = request
        self.generations: list[Generation] = []
        self._decode = model.tokenizer.backend_tokenizer.decode
        self._shape = shape(
            request_id=request_id,
            model=served,
            created=int(time.time()),
            fingerprint=FINGERPRINT,
            usage_chunk=request.usage_chunk,
        )
        self._offsets = [0] * self.choices
        self._started: set[int] = set()
        self._parsers = [ToolCallParser() for _ in range(self.choices)]

    @property
    def choices(self) -> int:
        return len(self.request.prompts) * self.request.n

    def whole(self) -> JsonObject:
        """Returns the whole response. Call it when all generations are finished."""
        outputs = []
        for choice, generation in enumerate(self.generations):
            text = generation.text.whole if generation.text else ""
            finish, spans = generation.finish_reason, tuple(generation.spans)
            delta = TokenDelta(tuple(generation.drawn), text, finish, spans)
            outputs.append(self._output(choice, delta))
        return self._shape.whole(outputs, self._usage())

    def opening(self) -> list[JsonObject]:
        """Returns the first events of a stream."""
        return [
            event
            for choice in range(self.choices)
            for event in self._shape.opening(choice, self._prompt_ids(choice))
        ]

    def chunk(self, choice: int, delta: TokenDelta) -> JsonObject:
        """Returns a stream's event for new tokens of one choice."""
        return self._shape.chunk(self._output(choice, delta))

    def closing(self) -> list[JsonObject]:
        """Returns the events after the last token of a stream."""
        return self._shape.closing(self._usage())

    def _output(self, choice: int, delta: TokenDelta) -> ChoiceOutput:
        text, calls = self._split(choice, delta)
        first = choice not in self._started
        self._started.add(choice)
        scores = self._scores(delta.drawn)
        output = ChoiceOutput(
            index=choice,
            text=text,
            tool_calls=calls,
            finish_reason=self._finish_reason(choice, delta.finish_reason),
            stop_reason=self.generations[choice].stop_reason if delta.finish_reason else None,
            scores=scores,
            text_offset=self._offsets[choice],
            token_ids=[drawn.token for drawn in delta.drawn] if self.request.token_ids else None,
            prompt_token_ids=self._prompt_ids(choice) if first else None,
            weight_versions=delta.spans,
        )
        self._offsets[choice] += sum(len(score.text) for score in scores or ())
        return output

    def _prompt_ids(self, choice: int) -> list[int] | None:
        request = self.request
        return request.prompts[choice // request.n] if request.prompt_ids else None

    def _usage(self) -> JsonObject:
        sampled = sum(len(generation.drawn) for generation in self.generations)
        return usage(sum(map(len, self.request.prompts)), sampled)

    def _split(self, choice: int, delta: TokenDelta) -> tuple[str, list[JsonObject]]:
        """Splits a delta into text and tool calls, if the request has tools."""
        if not self.request.tools:
            return delta.text, []
        parser = self._parsers[choice]
        before = len(parser.calls)
        text = parser.push(delta.text)
        if delta.finish_reason is not None:
            text += parser.close()
        calls = parser.calls[before:]
        if self.request.stream:
            calls = [{"index": index, **call} for index, call in enumerate(calls, before)]
        return text, calls

    def _finish_reason(self, choice: int, finish: Finish | None) -> str | None:
        called = finish is Finish.STOP and self._parsers[choice].calls
        return "tool_calls" if called else finish

    def _scores(self, drawn: Sequence[Drawn]) -> list[TokenScore] | None:
        count = self.request.sampling.logprobs
        if count is None:
            return None
        return [self._score(token, count + self._shape.more_candidates) for token in drawn]

    def _score(self, drawn: Drawn, count: int) -> TokenScore:
        """Returns the token's score with `count` candidates: the sampled token first, then the most
        likely others."""
        sampled = self._candidate(drawn)
        rest = [self._candidate(other) for other in drawn.top if other.token != drawn.token]
        return replace(sampled, top=(sampled, *rest)[:count])

    def _candidate(self, candidate: Drawn | TokenCandidate) -> TokenScore:
        text = _text(self._decode, candidate.token)
        logprob = max(candidate.logprob, _LEAST_LOGPROB)
        return TokenScore(candidate.token, text, logprob, candidate.rank)


@lru_cache(maxsize=1 << 16)
def _text(decode: Any, token: int) -> str:
    """Returns a token's own text, or "" for a token that is only part of a character."""
    text = str(decode([token], skip_special_tokens=False))
    return "" if "\ufffd" in text else text
