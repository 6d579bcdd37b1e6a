"""Pieces: the text of each sampled token, found by decoding; nothing is ever encoded.

The journal holds ids and logprobs, no texts: those only the model's tokenizer knows. A token may
be part of a character; it then has an empty piece, and the token that completes the character has
its text.
"""

from collections.abc import Callable, Sequence

Decode = Callable[[Sequence[int]], str]
UNFINISHED = "\ufffd"
LONGEST_CHARACTER = 8
"""After so many tokens without a whole character, the ids are not text: what there is is shown."""


def pieces_of(ids: Sequence[int], decode: Decode) -> list[str]:
    """One text per token; together they are `decode(ids)`, wherever that is whole.

    Each is what a token adds to those just before it, since a tokenizer may write a token
    otherwise at the beginning of a text. The cost grows with the tokens, not with their square.
    """
    pieces: list[str] = []
    start = done = 0  # `done` tokens have their pieces; decoding begins at `start` before them.
    for end in range(1, len(ids) + 1):
        before, now = decode(ids[start:done]), decode(ids[start:end])
        is_held = now.endswith(UNFINISHED) and end - done < LONGEST_CHARACTER
        if is_held and end < len(ids):
            pieces.append("")
            continue
        pieces.append(now[len(before) :])
        start, done = done, end
    return pieces
