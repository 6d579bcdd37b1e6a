"""One sample of the fake engine while it is drawn, token by token or all at once.

The tokens are taken in pieces. The sample does not depend on how it is divided into pieces. The
module knows nothing of HTTP, faults or time.
"""

import codecs
from zlib import crc32

from msgspec import Struct

from holdfast.testing.fake_engine.json_output import write_json
from holdfast.testing.fake_engine.options import DEFAULT_VERSION, Seeds
from holdfast.testing.fake_engine.tokens import (
    ALPHABET,
    END,
    MASK,
    PACKED,
    SPREAD,
    Sampler,
    Script,
    TokenLimits,
    logprobs_at,
    pack,
    salt_of,
    start_of,
)


class FakeSpan(Struct):
    """A range of tokens of a generation, and the weights that sampled it."""

    version: str
    start: int
    end: int


class FakePiece(Struct):
    """Consecutive tokens of one generation: a chunk of a stream, or a whole answer."""

    start: int
    """The number of the generation's tokens before this piece."""
    sampled: int
    """The number of tokens that were drawn. A fault may send more or fewer."""
    ids: list[int]
    logprobs: list[float]
    scored: list[int]
    """The ids of the tokens that the logprobs belong to. They equal `ids`, unless a fault makes the
    answer wrong."""
    text: str
    text_start: int
    finish_reason: str | None
    """Why the generation ended, or None while it continues."""
    stop: int | str | None
    """The stop string or token id that ended the generation, if there is one."""
    versions: list[FakeSpan]
    """The versions of the generation so far, not only of this piece."""


class JsonScript(Struct, frozen=True):
    """A reply that fits a schema. If the prompt already holds a beginning of the reply, the new
    reply does not continue it but begins from the start, as in real engines."""

    schema: dict[str, object]
    state: int
    written: int = 0

    def text(self, salt: int) -> bytes:
        return write_json(self.schema, self.state ^ salt).encode()


class FakeGeneration:
    """Draws one sample. The sample depends only on the arguments and on the versions that `advance`
    gets."""

    def __init__(
        self,
        sampler: Sampler,
        prompt: list[int],
        *,
        seed: int,
        limits: TokenLimits,
        schema: dict[str, object] | None = None,
        seeds: Seeds = "position",
        scale: float = 1.0,
    ):
        """`scale` is the factor of the logprobs. It stands for the effect of temperature and
        cuts."""
        packed, start = pack(prompt), start_of(seed)
        self.ids: list[int] = []
        self.logprobs: list[float] = []
        self.versions: list[FakeSpan] = []
        self.finish_reason: str | None = None
        self._stop: int | str | None = None
        self._limits = limits
        self._stop_texts = sorted((text.encode(), text) for text in limits.stop_texts if text)
        self._stop_ids = frozenset({END, *limits.stop_ids})
        self._end_below = sampler.end_below
        self._script: Script | JsonScript | None = sampler.script(packed, start)
        if schema is not None:
            self._script = JsonScript(schema, crc32(packed, start))
        self._replies: dict[int, bytes] = {}
        self._state = crc32(packed, start)
        if seeds == "request":
            # The length of the prompt is part of a request's random state.
            self._state = crc32(b"%d" % len(prompt), self._state)
        self._scores = logprobs_at(scale)
        self._taken = 0
        self._text_taken = 0
        self._text_held = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    # --- drawing

    def advance(
        self, count: int, version: str = DEFAULT_VERSION, *, content: str | None = None
    ) -> None:
        """Draws `count` tokens with the weights `version`, or fewer if the generation ends earlier.
        `content` names the weights to use if they differ from the weights that `version` names."""
        before = len(self.ids)
        self._draw(min(count, self._limits.max_tokens - before), salt_of(content or version))
        self._attribute(version, before)
        if not self.ended and len(self.ids) == self._limits.max_tokens:
            self.finish_reason = "length"

    @property
    def ended(self) -> bool:
        return self.finish_reason is not None

    def abort(self) -> None:
        self.finish_reason = self.finish_reason or "abort"

    def _draw(self, count: int, salt: int) -> None:
        ids, logprobs, state = self.ids, self.logprobs, self._state
        reply, position = self._reply(salt), len(ids)
        if self._script is not None:
            position += self._script.written
        # The hot loop of every benchmark, so `mix` is written out here.
        end_below, stops, texts = self._end_below, self._stop_ids, self._stop_texts
        scores = self._scores
        for index in range(position, position + count):
            mixed = (state ^ salt) * SPREAD & MASK
            mixed ^= mixed >> 15
            if reply is not None:
                token = reply[index] if index < len(reply) else END
            else:
                token = END if mixed < end_below else ALPHABET[mixed & 31]
            ids.append(token)
            logprobs.append(scores[mixed >> 5 & 1023])
            state = crc32(PACKED[token], state)
            if token in stops or (texts and self._matched_stop()):
                self._stop_at(token)
                break
        self._state = state

    def _reply(self, salt: int) -> bytes | None:
        if self._script is None:
            return None
        if salt not in self._replies:
            self._replies[salt] = self._script.text(salt)
        return self._replies[salt]

    def _matched_stop(self) -> str | None:
        for encoded, text in self._stop_texts:
            if self.ids[-len(encoded) :] == list(encoded):
                return text
        return None

    def _stop_at(self, token: int) -> None:
        self.finish_reason = "stop"
        self._stop = self._matched_stop() or (token if token != END else None)

    def _attribute(self, version: str, start: int) -> None:
        if len(self.ids) == start:
            return
        if self.versions and self.versions[-1].version == version:
            self.versions[-1].end = len(self.ids)
        else:
            self.versions.append(FakeSpan(version, start, len(self.ids)))

    # --- taking

    def take(self) -> FakePiece:
        """Returns the tokens drawn since the last call."""
        start, text_start = self._taken, self._text_taken
        ids = self.ids[start:]
        self._taken = len(self.ids)
        return FakePiece(
            start=start,
            sampled=len(ids),
            ids=ids,
            logprobs=self.logprobs[start:],
            scored=ids,
            text=self._text(ids),
            text_start=text_start,
            finish_reason=self.finish_reason,
            stop=self._stop,
            versions=[FakeSpan(span.version, span.start, span.end) for span in self.versions],
        )

    def _text(self, ids: list[int]) -> str:
        """Returns the text that can be sent already, as vLLM does. Text that may become a stop
        string is held back, and no part of a stop string is sent.

        The token ids include the stop string, the text does not.
        """
        raw = bytes(ids[:-1] if ids and ids[-1] == END else ids)
        text = self._text_held + self._decoder.decode(raw, final=self.ended)
        if self.ended:
            hold = len(self._stop) if isinstance(self._stop, str) else 0
            released, self._text_held = text[: len(text) - hold], ""
        else:
            hold = max((len(stop) for _, stop in self._stop_texts), default=1) - 1
            released = text[: max(0, len(text) - hold)]
            self._text_held = text[len(released) :]
        self._text_taken += len(released)
        return released


def whole(
    sampler: Sampler, prompt: list[int], *, seed: int, limits: TokenLimits, version: str
) -> FakePiece:
    """Draws a whole generation at once, and returns it as one piece."""
    generation = FakeGeneration(sampler, prompt, seed=seed, limits=limits)
    generation.advance(limits.max_tokens, version)
    return generation.take()
