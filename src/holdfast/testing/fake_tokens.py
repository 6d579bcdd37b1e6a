"""The tokens of the fake engine.

The vocabulary is that of `ByteRenderer`: 256 bytes, OPEN and END. Every token, and its logprob, is
a pure function of the seed and of all tokens before it, so a generation that is resumed from its
prompt and its first tokens goes on identically. Knows nothing of HTTP.
"""

import re
from array import array
from collections.abc import Collection, Iterable
from zlib import crc32

from msgspec import Struct

from holdfast.policy.renderer import ByteRenderer

OPEN = ByteRenderer.OPEN
END = ByteRenderer.END
VOCABULARY = 258
TEXT = [*(chr(byte) if byte < 128 else "\ufffd" for byte in range(256)), "<|open|>", "<|end|>"]

_MASK = 0xFFFFFFFF
_LETTERS = b"abcdefghijklmnopqrstuvwxyz      "
# Multiples of 1/256 are exact in float32: what a client stores equals what was sent.
_LOGPROBS = [-(k + 1) / 256 for k in range(1024)]
_PACKED = [array("H", [token]).tobytes() for token in range(VOCABULARY)]
_ASSISTANT = array("H", [OPEN, *b"assistant\n"]).tobytes()
_ONLY_AT_TURN = re.compile(r"@(\d+) ")


class Drawn(Struct):
    """What was sampled. `stop` is the stop string or token id that ended it, if one did."""

    ids: list[int]
    logprobs: list[float]
    text: str
    finish_reason: str
    stop: int | str | None = None


class Limits(Struct, frozen=True):
    """Where a generation ends, other than by END."""

    max_tokens: int
    stop_ids: Collection[int] = ()
    stop_texts: Collection[str] = ()


class Sampler(Struct, frozen=True):
    """Letters and spaces that END after `mean_length` tokens on average, or one of `replies`."""

    mean_length: float = 24
    replies: tuple[str, ...] = ()

    def draw(self, prompt: bytes, seed: int, limits: Limits) -> Drawn:
        """`prompt` as packed by `pack`."""
        start = crc32(str(seed).encode())
        state = crc32(prompt, start)
        reply = self._reply(prompt, start)
        if reply is None:
            ids, logprobs = self._sample(state, limits)
        else:
            ids, logprobs = _score(state, _until(reply, limits))
        return _finished(ids, logprobs, limits)

    def _sample(self, state: int, limits: Limits) -> tuple[list[int], list[float]]:
        ids: list[int] = []
        logprobs: list[float] = []
        end_below = _MASK / self.mean_length if self.mean_length else 0
        stops = {END, *limits.stop_ids}
        for _ in range(limits.max_tokens):
            mixed = _mix(state)
            token = END if mixed < end_below else _LETTERS[mixed & 31]
            ids.append(token)
            logprobs.append(_LOGPROBS[mixed >> 5 & 1023])
            if token in stops:
                break
            state = crc32(_PACKED[token], state)
        return ids, logprobs

    def _reply(self, prompt: bytes, start: int) -> bytes | None:
        """What is left of the reply to this turn; None if no template is for this turn.

        A resumed generation has the reply's beginning behind the last opening; it must not count
        in the choice.
        """
        eligible = list(_eligible(self.replies, prompt.count(_ASSISTANT) - 1))
        if not eligible:
            return None
        turn, opening, begun = prompt.rpartition(_ASSISTANT)
        chosen = crc32(turn if opening else prompt, start)
        reply = _fill(eligible[_mix(chosen) % len(eligible)], chosen)
        return reply.removeprefix(begun[::2]) if opening else reply


def pack(prompt: list[int] | str) -> bytes:
    """Raises `OutOfVocabulary`."""
    # A list, since `array` would take bytes for packed values.
    ids = list(prompt.encode()) if isinstance(prompt, str) else prompt
    try:
        packed = array("H", ids)
    except OverflowError:
        raise OutOfVocabulary(_stranger(ids)) from None
    if packed and max(packed) >= VOCABULARY:
        raise OutOfVocabulary(_stranger(ids))
    return packed.tobytes()


class OutOfVocabulary(Exception):
    def __init__(self, token: int):
        super().__init__(f"Token id {token} is out of vocabulary")


def _stranger(ids: Iterable[int]) -> int:
    return next(token for token in ids if not 0 <= token < VOCABULARY)


def _mix(state: int) -> int:
    mixed = state * 0x9E3779B1 & _MASK
    return mixed ^ mixed >> 15


def _score(state: int, ids: list[int]) -> tuple[list[int], list[float]]:
    logprobs: list[float] = []
    for token in ids:
        logprobs.append(_LOGPROBS[_mix(state) >> 5 & 1023])
        state = crc32(_PACKED[token], state)
    return ids, logprobs


def _until(reply: bytes, limits: Limits) -> list[int]:
    ids = [*reply, END][: limits.max_tokens]
    ends = [ids.index(stop) + 1 for stop in limits.stop_ids if stop in ids]
    return ids[: min(ends, default=len(ids))]


def _eligible(templates: Iterable[str], turn: int) -> Iterable[str]:
    for template in templates:
        only = _ONLY_AT_TURN.match(template)
        if only is None:
            yield template
        elif int(only[1]) == turn:
            yield template[only.end() :]


def _fill(template: str, state: int) -> bytes:
    head, *tails = template.split("{n}")
    for position, tail in enumerate(tails):
        head += f"{_mix(crc32(b'n%d' % position, state)) % 100}{tail}"
    return head.encode()


def _finished(ids: list[int], logprobs: list[float], limits: Limits) -> Drawn:
    raw = bytes(ids[:-1] if ids[-1] == END else ids)
    found = [(raw.index(b) + len(b), s) for s in limits.stop_texts if (b := s.encode()) in raw]
    if found:
        # As vLLM does: the ids keep the stop string, the text does not.
        end, stop = min(found)
        text = raw[:end].removesuffix(stop.encode()).decode("utf-8", "replace")
        return Drawn(ids[:end], logprobs[:end], text, "stop", stop)
    text = raw.decode("utf-8", "replace")
    if ids[-1] == END:
        return Drawn(ids, logprobs, text, "stop")
    if ids[-1] in limits.stop_ids:
        return Drawn(ids, logprobs, text, "stop", ids[-1])
    return Drawn(ids, logprobs, text, "length")
