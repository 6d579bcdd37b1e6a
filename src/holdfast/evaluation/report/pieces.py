"""Pieces: the text of each sampled token, by decoding alone.

The journal holds ids and logprobs; their text needs the model's tokenizer. A token that is part of
a character has an empty piece; the token that completes the character has its text.
"""

from collections.abc import Callable, Sequence

Decode = Callable[[Sequence[int]], str]
UNFINISHED = "\ufffd"
LONGEST_CHARACTER = 8
"""Tokens of a character, at most: after these, incomplete text is kept as it is."""


def pieces_of(ids: Sequence[int], decode: Decode) -> list[str]:
    """One text per token; together they are `decode(ids)`, if that is complete.

    Each is decoded with the tokens just before it, because a tokenizer may decode a token
    differently at the beginning of a text. The cost is linear in the tokens.
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
