"""Spaces of gymnasium as text: which action a reply means, and what an observation says."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from gymnasium import Space, spaces

from holdfast.environments import replies
from holdfast.records.errors import ToolSaysNo, UsageError

MAX_NUMBERS = 256
"""An array with more is no text."""
_MAX_WORDS = 1000

Read = Callable[[str], object]


def reading(space: "Space[Any]") -> tuple[Read, str]:
    """How a reply becomes an action of the space, and what the possible actions are."""
    match space:
        case spaces.Discrete() if space.n <= _MAX_WORDS:
            values = {str(value): value for value in _values(space)}
            words = replies.ReplyTexts(values)
            return lambda reply: values[words.read(reply)], f"one of {words.possible}"
        case spaces.Discrete():
            return _one_integer(space)
        case spaces.Box() | spaces.MultiDiscrete() | spaces.MultiBinary():
            return _numbers(space)
        case spaces.Text():
            return _text(space)
        case _:
            raise UsageError(
                f"no text is an action of {space} by itself: give `actions=`, a function from the "
                "reply to the action"
            )


def is_action(space: "Space[Any]", value: object) -> bool:
    """Whether it can be done. Numbers may come as lists, or in another precision."""
    if isinstance(space, spaces.Box | spaces.MultiDiscrete | spaces.MultiBinary):
        try:
            with np.errstate(all="ignore"):
                value = np.asarray(value, dtype=space.dtype)
        except (TypeError, ValueError, OverflowError):
            return False
    return bool(space.contains(value))


def _values(space: spaces.Discrete) -> range:
    return range(int(space.start), int(space.start + space.n))


def _one_integer(space: spaces.Discrete) -> tuple[Read, str]:
    values = _values(space)
    possible = f"an integer from {values[0]} to {values[-1]}"

    def read(reply: str) -> int:
        (number,) = replies.numbers(reply, 1, possible=possible)
        if not (number.is_integer() and int(number) in values):
            raise ToolSaysNo(f"Nothing happened: {number:g} is no action. Wanted: {possible}.")
        return int(number)

    return read, possible


def _numbers(space: "Space[Any]") -> tuple[Read, str]:
    shape = space.shape or ()
    count = int(np.prod(shape, dtype=np.int64))
    possible = f"{count} number{'s' * (count != 1)} in {space}"

    def read(reply: str) -> object:
        found = np.asarray(replies.numbers(reply, count, possible=possible))
        with np.errstate(all="ignore"):
            action = found.astype(space.dtype).reshape(shape)
        is_integer = np.issubdtype(action.dtype, np.integer)
        if not space.contains(action) or (is_integer and (action.reshape(-1) != found).any()):
            raise ToolSaysNo(
                f"Nothing happened: {_listed(found)} is no action. Wanted: {possible}."
            )
        return action

    return read, possible


def _text(space: spaces.Text) -> tuple[Read, str]:
    possible = f"a text of {space.min_length} to {space.max_length} characters"

    def read(reply: str) -> str:
        text = replies.tagged(reply)
        text = reply.strip() if text is None else text
        if not space.contains(text):
            raise ToolSaysNo(f"Nothing happened: the reply is not {possible} in {space}.")
        return text

    return read, possible


def described(space: "Space[Any]", observation: object, names: Sequence[str] = ()) -> str:
    """An observation in words. `names` are those of its parts, where it has parts without any."""
    match space:
        case spaces.Dict() if isinstance(observation, dict):
            parts = [f"{key}: {described(space[key], observation[key])}" for key in space.spaces]
            return "\n".join(parts)
        case spaces.Tuple() if isinstance(observation, tuple):
            pairs = zip(space.spaces, observation, strict=True)
            parts = [described(part, value) for part, value in pairs]
        case spaces.Box() | spaces.MultiDiscrete() | spaces.MultiBinary():
            array = np.asarray(observation)
            if names or array.ndim == 1:
                parts = [_shown(value) for value in _small(array).reshape(-1)]
            else:
                return _listed(_small(array))
        case _:
            return _shown(observation)
    return _named(parts, names)


def _named(parts: Sequence[str], names: Sequence[str]) -> str:
    if not names:
        return f"({', '.join(parts)})"
    if len(names) != len(parts):
        raise UsageError(f"{len(names)} names are given, and an observation has {len(parts)} parts")
    return ", ".join(f"{name}: {part}" for name, part in zip(names, parts, strict=True))


def _small(array: "np.ndarray[Any, Any]") -> "np.ndarray[Any, Any]":
    if array.size > MAX_NUMBERS:
        raise UsageError(
            f"an observation of shape {array.shape} is no text: give `render=`, a function of the "
            "environment, the observation and the info that says what the policy is shown"
        )
    return array


def _listed(array: "np.ndarray[Any, Any]") -> str:
    if array.ndim == 0:
        return _shown(array)
    return f"[{', '.join(_listed(part) for part in array)}]"


def _shown(value: object) -> str:
    if isinstance(value, np.generic) or (isinstance(value, np.ndarray) and value.ndim == 0):
        value = value.item()
    if isinstance(value, np.ndarray):
        return _listed(_small(value))
    # Six digits say what the next step needs; all sixteen would be noise, and many tokens.
    return f"{value:.6g}" if isinstance(value, float) else str(value)
