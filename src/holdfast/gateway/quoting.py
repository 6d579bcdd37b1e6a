"""Quoting: what a refusal may say back of what was sent.

It helps to be told which value was wrong; it does not help to get a megabyte of it, or a control
character that a terminal obeys. And a key is never said back: who reads an error is not always who
sent the request.
"""

import re

from holdfast.records.redaction import without_hidden

LONGEST = 500
"""Characters of a whole message; a value that it quotes has less."""
LONGEST_NAME = 200
_KEY = re.compile(r"hf-[A-Za-z0-9_-]{8,}")


def quotable(text: str, most: int = LONGEST) -> str:
    """`text` on one line, without keys and other secrets, and no longer than `most`."""
    # A secret may lie across the end, and what is printed of a character may be longer than it.
    text = _KEY.sub("hf-…", without_hidden(text)[: 4 * most])
    if not text.isprintable():
        text = "".join(one if one.isprintable() else _escaped(one) for one in text)
    return text if len(text) <= most else f"{text[: most - 1]}…"


def shortened(text: str, most: int = LONGEST_NAME) -> str:
    """The beginning of `text`, for a message that is made `quotable`: half a secret in it would be
    recognized by nobody."""
    text = without_hidden(text)
    return text if len(text) <= most else f"{text[:most]}…"


def _escaped(one: str) -> str:
    return one.encode("unicode_escape").decode()
