"""A generation has its request and its tokens so far.

Only the engine's thread changes a generation while it is in flight. A generation is final once
`finish_reason` is set and its sink was called with that reason.
"""

from collections.abc import Callable, Sequence
from enum import StrEnum

from msgspec import Struct, field

from holdfast.embedded.scheduler.detokenizer import GenerationText


class Finish(StrEnum):
    """Why a generation ended."""

    STOP = "stop"
    """An end-of-sequence token, a stop token or a stop string."""
    LENGTH = "length"
    """The generation has `max_tokens` tokens."""
    ABORT = "abort"
    """The generation was ended from outside. The tokens so far are good."""
    ERROR = "error"
    """The model returned numbers that are not finite."""


class TokenSampling(Struct, frozen=True, kw_only=True):
    """How tokens are drawn. `temperature` 0 is greedy. `logprobs` is how many candidates to keep
    beside the sampled token. None means no logprobs."""

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    seed: int = 0
    stop_token_ids: frozenset[int] = frozenset()
    ignore_eos: bool = False
    logprobs: int | None = None
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()

    @property
    def is_cut(self) -> bool:
        """Whether some tokens cannot be drawn. Greedy sampling does not count, because it takes the
        likeliest token anyway."""
        return self.temperature > 0 and bool(self.top_p < 1 or self.top_k or self.min_p)

    @property
    def is_bent(self) -> bool:
        """Whether biases or penalties change the logits first."""
        return bool(
            self.logit_bias
            or self.presence_penalty
            or self.frequency_penalty
            or self.repetition_penalty != 1
        )


class WeightSpan(Struct, frozen=True):
    """Tokens [start, end) of a completion, which the weights of one version sampled."""

    version: str
    start: int
    end: int


class TokenCandidate(Struct, frozen=True):
    """A token with its log-probability and its rank (1 is the most likely)."""

    token: int
    logprob: float
    rank: int


class Drawn(Struct, frozen=True):
    """A sampled token. `top` are the most likely candidates, as many as requested."""

    token: int
    logprob: float
    rank: int
    top: tuple[TokenCandidate, ...] = ()


class TokenDelta(Struct, frozen=True):
    """The tokens and the text that are new since the last delta. `text` leaves out a possible
    beginning of a stop string."""

    drawn: tuple[Drawn, ...]
    text: str
    finish_reason: Finish | None
    spans: "tuple[WeightSpan, ...]" = ()
    """The versions of all tokens up to here. If a stream breaks off, it has reported them
    already."""


Sink = Callable[["Generation", TokenDelta], None]
"""Called in the engine's thread. It must hand over the delta and return at once."""


class Generation:
    """A completion in progress: its prompt, its tokens, and its slot in the cache.

    `computed` counts the first tokens of prompt + completion that the cache holds in `slot`.
    Setting it back to 0 is always safe: the tokens are computed again, with the same bits.
    """

    def __init__(
        self,
        prompt: Sequence[int],
        sampling: TokenSampling,
        *,
        sink: Sink,
        text: GenerationText | None = None,
        stream: bool = False,
    ):
        self.sampling = sampling
        self.ids = list(prompt)
        self.prompt_length = len(self.ids)
        self.drawn: list[Drawn] = []
        self.spans: list[WeightSpan] = []
        self.text = text
        self.stream = stream
        self.sink = sink
        self.slot = -1
        self.computed = 0
        self.cancelled = False
        self.mixed = False
        """Whether more than one set of weights computed its cache."""
        self.finish_reason: Finish | None = None
        self.stop_reason: int | str | None = None

    @property
    def pending(self) -> int:
        """The number of tokens that the cache does not hold yet."""
        return len(self.ids) - self.computed

    @property
    def tokens(self) -> list[int]:
        return self.ids[self.prompt_length :]

    def add(self, drawn: Drawn, *, version: str, eos: frozenset[int]) -> TokenDelta:
        """Adds a sampled token, and ends the generation if the token is its last."""
        self.ids.append(drawn.token)
        self.drawn.append(drawn)
        self._extend_span(version)
        self._decide(drawn.token, eos)
        delta = self.text.push(drawn.token, last=self.finish_reason) if self.text else ""
        if self.text is not None and self.text.stopped_by is not None:
            self.finish_reason, self.stop_reason = Finish.STOP, self.text.stopped_by
        return TokenDelta((drawn,), delta, self.finish_reason, tuple(self.spans))

    def end(self, reason: Finish) -> TokenDelta:
        """Ends the generation from outside, with the tokens that it has."""
        assert self.finish_reason is None, "a generation ends once"
        self.finish_reason = reason
        return TokenDelta((), self.text.flush() if self.text else "", reason, tuple(self.spans))

    def send(self, delta: TokenDelta) -> None:
        """Sends a delta, unless the generation was cancelled. After a cancellation, the caller and
        its event loop may be gone."""
        if self.cancelled:
            return
        if self.stream or delta.finish_reason is not None:
            self.sink(self, delta)

    def _extend_span(self, version: str) -> None:
        end = len(self.drawn)
        if self.spans and self.spans[-1].version == version:
            self.spans[-1] = WeightSpan(version, self.spans[-1].start, end)
        else:
            self.spans.append(WeightSpan(version, end - 1, end))

    def _decide(self, token: int, eos: frozenset[int]) -> None:
        if token in eos and not self.sampling.ignore_eos:
            self.finish_reason = Finish.STOP
        elif token in self.sampling.stop_token_ids:
            self.finish_reason, self.stop_reason = Finish.STOP, token
        elif len(self.drawn) >= self.sampling.max_tokens:
            self.finish_reason = Finish.LENGTH


class Statistics(Struct):
    """Counters of the engine's thread, for `/metrics`."""

    prompt_tokens: int = 0
    generation_tokens: int = 0
    finished: dict[str, int] = field(default_factory=dict)
    passes: int = 0
    rows: list[int] = field(default_factory=lambda: [0] * 9)
    """The number of passes by their rows in use: at most 1, 2, 4 … 128, and more."""
    row_sum: int = 0
    weight_updates: int = 0

    def count_pass(self, rows: int) -> None:
        self.passes += 1
        self.row_sum += rows
        self.rows[min(max(rows - 1, 0).bit_length(), len(self.rows) - 1)] += 1

    def count_finish(self, reason: Finish) -> None:
        self.finished[reason] = self.finished.get(reason, 0) + 1
