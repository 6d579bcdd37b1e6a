"""The tokens of the fake engine.

The vocabulary is the vocabulary of `ByteRenderer`: 256 bytes, OPEN and END. Every token and its
logprob are a pure function of the weights' version, the seed and all tokens before it. So a
generation that is resumed from its prompt and its first tokens continues identically. The module
knows nothing of HTTP.
"""

import re
from array import array
from collections.abc import Iterable
from functools import lru_cache
from zlib import crc32

from msgspec import Struct

from holdfast.policy.rendering.renderer import ByteRenderer
from holdfast.testing.fake_engine.options import DEFAULT_VERSION

OPEN = ByteRenderer.OPEN
END = ByteRenderer.END
VOCABULARY = 258
TEXT = [*(chr(byte) if byte < 128 else "\ufffd" for byte in range(256)), "<|open|>", "<|end|>"]

MASK = 0xFFFFFFFF
SPREAD = 0x9E3779B1
ALPHABET = b"abcdefghijklmnopqrstuvwxyz      "
# Multiples of 1/256 are exact in float32: what a client stores equals what was sent.
LOGPROBS = [-(k + 1) / 256 for k in range(1024)]
EXACT = 65536
PACKED = [array("H", [token]).tobytes() for token in range(VOCABULARY)]
_ASSISTANT = array("H", [OPEN, *b"assistant\n"]).tobytes()
_ONLY_AT_TURN = re.compile(r"@(\d+) ")


class TokenLimits(Struct, frozen=True):
    """The limits that end a generation before END."""

    max_tokens: int
    stop_ids: tuple[int, ...] = ()
    stop_texts: tuple[str, ...] = ()


class Script(Struct, frozen=True):
    """The reply to a turn. The seed and the turn decide which template is used, and the numbers in
    the reply depend on the weights."""

    template: str
    state: int
    written: int
    """The number of bytes of the reply that the prompt already holds."""

    def text(self, salt: int) -> bytes:
        head, *tails = self.template.split("{n}")
        for position, tail in enumerate(tails):
            head += f"{mix(crc32(b'n%d' % position, self.state) ^ salt) % 100}{tail}"
        return head.encode()


class Sampler(Struct, frozen=True):
    """Samples letters and spaces until END, which comes after `mean_length` tokens on average. With
    `replies`, samples a reply from these templates instead."""

    mean_length: float = 24
    replies: tuple[str, ...] = ()

    @property
    def end_below(self) -> float:
        return MASK / self.mean_length if self.mean_length else 0

    def script(self, prompt: bytes, start: int) -> Script | None:
        """Returns the reply to this turn, or None if no template fits the turn.

        In a resumed generation, the prompt ends with the beginning of the reply. This beginning
        must not change which reply is chosen.
        """
        eligible = list(_eligible(self.replies, prompt.count(_ASSISTANT) - 1))
        if not eligible:
            return None
        turn, opening, reply = prompt.rpartition(_ASSISTANT)
        chosen = crc32(turn if opening else prompt, start)
        template = eligible[mix(chosen) % len(eligible)]
        return Script(template, chosen, len(reply) // 2 if opening else 0)


@lru_cache
def logprobs_at(scale: float) -> list[float]:
    """Returns the logprobs of the distribution, multiplied by `scale`."""
    return [round(logprob * scale * EXACT) / EXACT for logprob in LOGPROBS]


def salt_of(version: str) -> int:
    """Returns the number by which a version changes the choice of tokens. The first version has 0,
    which changes nothing."""
    return 0 if version == DEFAULT_VERSION else crc32(version.encode())


def mix(state: int) -> int:
    mixed = state * SPREAD & MASK
    return mixed ^ mixed >> 15


def start_of(seed: int) -> int:
    return crc32(str(seed).encode())


def pack(ids: list[int]) -> bytes:
    """Returns the token ids as bytes. Raises `OutOfVocabulary`."""
    try:
        packed = array("H", ids)
    except OverflowError:
        raise OutOfVocabulary(_unknown_token(ids)) from None
    if packed and max(packed) >= VOCABULARY:
        raise OutOfVocabulary(_unknown_token(ids))
    return packed.tobytes()


class OutOfVocabulary(Exception):
    def __init__(self, token: int):
        super().__init__(f"Token id {token} is out of vocabulary")
        self.token = token


def _unknown_token(ids: Iterable[int]) -> int:
    return next(token for token in ids if not 0 <= token < VOCABULARY)


def _eligible(templates: Iterable[str], turn: int) -> Iterable[str]:
    for template in templates:
        only = _ONLY_AT_TURN.match(template)
        if only is None:
            yield template
        elif int(only[1]) == turn:
            yield template[only.end() :]
