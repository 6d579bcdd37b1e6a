"""Reads actions from the replies of a policy, and adds instructions to observations.

The action of a reply is the one in its last `<action>…</action>`. Without such a tag, it is the one
on the last line that names an action, and the text around the action is ignored. A reply with two
possible meanings raises `ToolSaysNo`, whose message tells the policy how to write the action.
"""

import json
import math
import re
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise

from msgspec import structs

from holdfast.records.errors import ToolSaysNo, UsageError
from holdfast.rollout.episodes.environment import Observation

_TAG = re.compile(r"<(/?)action>", re.IGNORECASE)
_NUMBER = re.compile(r"(?<![\w.])[-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?(?!\w)")
_MAX_NAMED = 40
_MAX_BAD_BRACES = 500
"""The search ends after this many braces that begin no object, because its time grows with the
square of their number."""
_json = json.JSONDecoder()


def tagged_action(reply: str) -> str | None:
    """Returns the text in the last `<action>…</action>` of a reply, or None if there is no such
    tag."""
    tags = list(_TAG.finditer(reply))
    for closing, opening in pairwise(reversed(tags)):
        if closing[1] and not opening[1]:
            return reply[opening.end() : closing.start()].strip()
    return None


class ActionNames:
    """A fixed set of actions. The name of an action has one or more words."""

    def __init__(self, names: Iterable[str]):
        self.names = tuple(names)
        self._known = {_folded(name): name for name in self.names}
        if not self.names or "" in self._known or len(self._known) != len(self.names):
            raise UsageError(
                f"the words for actions are {list(self.names)}: give at least one, none empty, and "
                "no two that differ only in case"
            )
        # Longest first, so that "turn right" does not match "right".
        longest = sorted(self._known, key=len, reverse=True)
        alternatives = "|".join(map(_pattern, longest))
        self._pattern = re.compile(rf"(?:{alternatives})(?!\w|\.\d)", re.IGNORECASE)

    @property
    def possible(self) -> str:
        listed = ", ".join(self.names[:_MAX_NAMED])
        more = len(self.names) - _MAX_NAMED
        return listed if more <= 0 else f"{listed} and {more} more, up to {self.names[-1]}"

    def read(self, reply: str) -> str:
        """Returns the action that the reply names. Raises `ToolSaysNo` if the reply names no action
        or several actions."""
        for line in _decisive_lines(reply):
            matches = self._pattern.findall(line)
            named = dict.fromkeys(self._known[_folded(name)] for name in matches)
            if len(named) == 1:
                return next(iter(named))
            if named:
                raise ToolSaysNo(
                    f"Nothing happened: {', '.join(named)} were named, and one action is wanted. "
                    f"Write it as <action>{next(iter(named))}</action>."
                )
        raise ToolSaysNo(f"Nothing happened: no action was named. Possible are: {self.possible}.")


def read_numbers(reply: str, count: int, *, possible: str) -> list[float]:
    """Returns the numbers on the last line with numbers. Raises `ToolSaysNo` unless there are
    exactly `count`, all of them finite."""
    for line in _decisive_lines(reply):
        numbers = [float(number) for number in _NUMBER.findall(line)]
        if len(numbers) == count and all(map(math.isfinite, numbers)):
            return numbers
        if numbers:
            raise ToolSaysNo(
                f"Nothing happened: {' '.join(line.split()):.80} is not an action. "
                f"Wanted: {possible}."
            )
    raise ToolSaysNo(f"Nothing happened: no number was given. Wanted: {possible}.")


def json_object(reply: str) -> dict[str, object]:
    """Returns the only JSON object in a reply. Raises `ToolSaysNo` if there is none or more than
    one.

    Do not rename this function: its name is in the recorded identity of OpenEnv environments.
    """
    text = tagged_action(reply)
    objects = _objects(reply if text is None else text)
    if len(objects) == 1:
        return objects[0]
    number = (
        "no JSON object was given" if not objects else f"{len(objects)} JSON objects were given"
    )
    raise ToolSaysNo(f"Nothing happened: {number}, and exactly one is wanted as the action.")


def apply_reader(read: Callable[[str], object], reply: str) -> object:
    """Calls `read`, a user's function, with the reply. Converts its `ValueError`, which means that
    the reply is not an action, to `ToolSaysNo`."""
    try:
        return read(reply)
    except ValueError as error:
        raise ToolSaysNo(f"Nothing happened: the action was not understood: {error}") from error


def with_instructions(observation: Observation, instructions: str) -> Observation:
    """Returns the observation with the instructions below its text."""
    text = f"{observation.text}\n\n{instructions}".strip()
    return structs.replace(observation, text=text)


def function_name(function: object) -> str:
    """Returns the function's name, which is the same in every process. The `repr` would contain an
    address."""
    return str(getattr(function, "__qualname__", None) or type(function).__qualname__)


def _decisive_lines(reply: str) -> Sequence[str]:
    """Returns the lines that may name the action, the line that counts most first: the text in the
    last tag, or else all lines from the last to the first."""
    text = tagged_action(reply)
    return reply.splitlines()[::-1] if text is None else [text]


def _pattern(name: str) -> str:
    # "-1" and "0.1" do not name 1, but "go-left" names left.
    before = r"(?<![\w.+-])" if name[0].isdigit() else r"(?<!\w)"
    return before + r"\s+".join(map(re.escape, name.split()))


def _folded(name: str) -> str:
    return " ".join(name.casefold().split())


def _objects(text: str) -> list[dict[str, object]]:
    values: list[dict[str, object]] = []
    at, bad_braces = text.find("{"), 0
    while at >= 0 and bad_braces < _MAX_BAD_BRACES:
        end = at + 1
        try:
            value, end = _json.raw_decode(text, at)
        except (ValueError, RecursionError):
            bad_braces += 1
        else:
            values.append(value)
        at = text.find("{", end)
    return values
