"""Replies: which action the text of a policy means.

Lenient about the words around an action, strict about which one is meant: a reply that can be read
in two ways is refused with `ToolSaysNo`, whose words say what would have been understood. Knows
nothing of environments.

What decides is the last `<action>…</action>` of a reply; without one, its last line that names an
action at all.
"""

import json
import math
import re
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise

from holdfast.records.errors import ToolSaysNo, UsageError

_TAG = re.compile(r"<(/?)action>", re.IGNORECASE)
_NUMBER = re.compile(r"(?<![\w.])[-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?(?!\w)")
_MAX_SHOWN = 40
_MAX_VAIN = 500
"""A reply with more braces that lead nowhere is not searched to its end: it could take for ever."""
_json = json.JSONDecoder()


def tagged(reply: str) -> str | None:
    """What the last `<action>…</action>` holds, if there is one."""
    tags = list(_TAG.finditer(reply))
    for closing, opening in pairwise(reversed(tags)):
        if closing[1] and not opening[1]:
            return reply[opening.end() : closing.start()].strip()
    return None


class ReplyTexts:
    """A closed set of actions, each named by a word or a few."""

    def __init__(self, words: Iterable[str]):
        self.words = tuple(words)
        self._known = {_folded(word): word for word in self.words}
        if not self.words or "" in self._known or len(self._known) != len(self.words):
            raise UsageError(
                f"the words for actions are {list(self.words)}: give at least one, none empty, and "
                "no two that differ only in case"
            )
        # The longest first: of "right" and "turn right", the latter is meant where it stands.
        longest = sorted(self._known, key=len, reverse=True)
        one_of = "|".join(map(_pattern, longest))
        self._pattern = re.compile(rf"(?:{one_of})(?!\w|\.\d)", re.IGNORECASE)

    @property
    def possible(self) -> str:
        shown = ", ".join(self.words[:_MAX_SHOWN])
        more = len(self.words) - _MAX_SHOWN
        return shown if more <= 0 else f"{shown} and {more} more, up to {self.words[-1]}"

    def read(self, reply: str) -> str:
        """The one word that the reply names."""
        for line in _decisive(reply):
            found = self._pattern.findall(line)
            named = dict.fromkeys(self._known[_folded(word)] for word in found)
            if len(named) == 1:
                return next(iter(named))
            if named:
                raise ToolSaysNo(
                    f"Nothing happened: {', '.join(named)} were named, and one action is wanted. "
                    f"Write it as <action>{next(iter(named))}</action>."
                )
        raise ToolSaysNo(f"Nothing happened: no action was named. Possible are: {self.possible}.")


def numbers(reply: str, count: int, *, possible: str) -> list[float]:
    """The `count` numbers that the reply ends with, in order."""
    for line in _decisive(reply):
        found = [float(number) for number in _NUMBER.findall(line)]
        if len(found) == count and all(map(math.isfinite, found)):
            return found
        if found:
            raise ToolSaysNo(
                f"Nothing happened: {' '.join(line.split()):.80} is no action. Wanted: {possible}."
            )
    raise ToolSaysNo(f"Nothing happened: no number was given. Wanted: {possible}.")


def json_object(reply: str) -> dict[str, object]:
    """The one JSON object of a reply, with or without words and fences around it."""
    text = tagged(reply)
    found = _objects(reply if text is None else text)
    if len(found) == 1:
        return found[0]
    said = "no JSON object was given" if not found else f"{len(found)} JSON objects were given"
    raise ToolSaysNo(f"Nothing happened: {said}, and exactly one is wanted as the action.")


def understood(read: Callable[[str], object], reply: str) -> object:
    """What a user's function makes of a reply. A `ValueError` of it says that it could not."""
    try:
        return read(reply)
    except ValueError as error:
        raise ToolSaysNo(f"Nothing happened: the action was not understood: {error}") from error


def _decisive(reply: str) -> Sequence[str]:
    """The places to look for an action; the first that names any decides."""
    text = tagged(reply)
    return reply.splitlines()[::-1] if text is None else [text]


def _pattern(word: str) -> str:
    # The 1 of "-1" and of "0.1" is another number; the left of "go-left" is left.
    before = r"(?<![\w.+-])" if word[0].isdigit() else r"(?<!\w)"
    return before + r"\s+".join(map(re.escape, word.split()))


def _folded(word: str) -> str:
    return " ".join(word.casefold().split())


def _objects(text: str) -> list[dict[str, object]]:
    found: list[dict[str, object]] = []
    at, vain = text.find("{"), 0
    while at >= 0 and vain < _MAX_VAIN:
        end = at + 1
        try:
            value, end = _json.raw_decode(text, at)
        except (ValueError, RecursionError):
            vain += 1  # A brace that begins no object: the next one may.
        else:
            found.append(value)
        at = text.find("{", end)
    return found
