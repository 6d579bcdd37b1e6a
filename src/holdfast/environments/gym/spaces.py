"""Reads actions of gymnasium's spaces, formats observations as text, and makes numpy's values
recordable.

A style in terminal output may carry meaning, such as a coloured cell that shows where the agent is.
So it becomes brackets: `[S]` has a background colour, `(S)` is bold, `{S}` has a text colour.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from gymnasium import Space, spaces

from holdfast.environments import replies
from holdfast.records.errors import ToolSaysNo, UsageError

MAX_NUMBERS = 256
"""The most numbers of an array that is formatted as text."""
MAX_INFO_NUMBERS = 1024
"""The most numbers of an array in the `info` of a step that is recorded."""
MAX_INFO_BYTES = 64 * 1024
"""The most bytes of a value in the `info` of a step that is recorded."""
_MAX_NAMES = 1000
_PLAIN = (bool, int, float, str, bytes, type(None))

Read = Callable[[str], object]


def action_reader(space: "Space[Any]") -> tuple[Read, str]:
    """Returns a function that reads an action from a reply, and a text that names the possible
    actions."""
    match space:
        case spaces.Discrete() if space.n <= _MAX_NAMES:
            values = {str(value): value for value in _values(space)}
            names = replies.ActionNames(values)
            return lambda reply: values[names.read(reply)], f"one of {names.possible}"
        case spaces.Discrete():
            return _integer(space)
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
    """Returns whether `value` is an action of the space. Lists, and arrays of another precision,
    are converted to the space's arrays first."""
    if isinstance(space, spaces.Box | spaces.MultiDiscrete | spaces.MultiBinary):
        try:
            with np.errstate(all="ignore"):
                value = np.asarray(value, dtype=space.dtype)
        except (TypeError, ValueError, OverflowError):
            return False
    return bool(space.contains(value))


def _values(space: spaces.Discrete) -> range:
    return range(int(space.start), int(space.start + space.n))


def _integer(space: spaces.Discrete) -> tuple[Read, str]:
    values = _values(space)
    possible = f"an integer from {values[0]} to {values[-1]}"

    def read(reply: str) -> int:
        (number,) = replies.read_numbers(reply, 1, possible=possible)
        if not (number.is_integer() and int(number) in values):
            raise ToolSaysNo(f"Nothing happened: {number:g} is not an action. Wanted: {possible}.")
        return int(number)

    return read, possible


def _numbers(space: "Space[Any]") -> tuple[Read, str]:
    shape = space.shape or ()
    count = int(np.prod(shape, dtype=np.int64))
    possible = f"{count} number{'s' * (count != 1)} in {space}"

    def read(reply: str) -> object:
        numbers = np.asarray(replies.read_numbers(reply, count, possible=possible))
        with np.errstate(all="ignore"):
            action = numbers.astype(space.dtype).reshape(shape)
        is_integer = np.issubdtype(action.dtype, np.integer)
        if not space.contains(action) or (is_integer and (action.reshape(-1) != numbers).any()):
            raise ToolSaysNo(
                f"Nothing happened: {_format_array(numbers)} is not an action. Wanted: {possible}."
            )
        return action

    return read, possible


def _text(space: spaces.Text) -> tuple[Read, str]:
    possible = f"a text of {space.min_length} to {space.max_length} characters"

    def read(reply: str) -> str:
        text = replies.tagged_action(reply)
        text = reply.strip() if text is None else text
        if not space.contains(text):
            raise ToolSaysNo(f"Nothing happened: the reply is not {possible} in {space}.")
        return text

    return read, possible


def format_observation(space: "Space[Any]", observation: object, names: Sequence[str] = ()) -> str:
    """Formats an observation as text. `names` name the parts of an array or a tuple."""
    match space:
        case spaces.Dict() if isinstance(observation, dict):
            texts = {key: format_observation(space[key], observation[key]) for key in space.spaces}
            return "\n".join(f"{key}: {text}" for key, text in texts.items())
        case spaces.Tuple() if isinstance(observation, tuple):
            pairs = zip(space.spaces, observation, strict=True)
            parts = [format_observation(part, value) for part, value in pairs]
        case spaces.Box() | spaces.MultiDiscrete() | spaces.MultiBinary():
            array = np.asarray(observation)
            if names or array.ndim == 1:
                parts = [_format(value) for value in _check_size(array).reshape(-1)]
            else:
                return _format_array(_check_size(array))
        case _:
            return _format(observation)
    return _join(parts, names)


def _join(parts: Sequence[str], names: Sequence[str]) -> str:
    if not names:
        return f"({', '.join(parts)})"
    if len(names) != len(parts):
        raise UsageError(f"{len(names)} names are given, and an observation has {len(parts)} parts")
    return ", ".join(f"{name}: {part}" for name, part in zip(names, parts, strict=True))


def _check_size(array: "np.ndarray[Any, Any]") -> "np.ndarray[Any, Any]":
    if array.size > MAX_NUMBERS:
        raise UsageError(
            f"an observation of shape {array.shape} is not text: give `render=`, a function from "
            "the environment, the observation and the info to the text for the policy"
        )
    return array


def _format_array(array: "np.ndarray[Any, Any]") -> str:
    if array.ndim == 0:
        return _format(array)
    return f"[{', '.join(_format_array(part) for part in array)}]"


def _format(value: object) -> str:
    if isinstance(value, np.generic) or (isinstance(value, np.ndarray) and value.ndim == 0):
        value = value.item()
    if isinstance(value, np.ndarray):
        return _format_array(_check_size(value))
    # Six digits are enough to act on. Sixteen would cost many tokens.
    return f"{value:.6g}" if isinstance(value, float) else str(value)


# --- values that a journal can hold


def _reject(value: object) -> object:
    raise TypeError(f"{type(value).__name__} cannot be recorded")


def to_builtins(value: object, otherwise: Callable[[object], object] = _reject) -> object:
    """Converts the value to numbers, strings, lists and dicts. Calls `otherwise` for an object of
    any other type."""
    match value:
        case np.generic() | np.ndarray():
            return value.tolist()
        case Mapping():
            return {str(key): to_builtins(part, otherwise) for key, part in value.items()}
        case list() | tuple():
            return [to_builtins(part, otherwise) for part in value]
        case _:
            return value if isinstance(value, _PLAIN) else otherwise(value)


def recordable(info: Mapping[str, object]) -> dict[str, object]:
    """Returns the part of `info` that can be recorded: large arrays and other objects are left
    out."""
    kept: dict[str, object] = {}
    for key, value in info.items():
        if isinstance(value, np.ndarray) and value.size > MAX_INFO_NUMBERS:
            continue
        try:
            plain = to_builtins(value)
            size = len(msgspec.msgpack.encode(plain))
        except (OverflowError, RecursionError, ValueError, TypeError):
            continue  # `info` is optional and must not break the episode.
        if size <= MAX_INFO_BYTES:
            kept[str(key)] = plain
    return kept


_STYLE = re.compile(r"\x1b\[([0-9;]*)m")
_CONTROL = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[@-Z\\-_])|[\x00-\x08\x0b-\x1f\x7f]")
_MARKS = {"back": "[]", "bold": "()", "fore": "{}"}
_OFF = {22: "bold", 27: "back", 39: "fore", 49: "back"}


def without_ansi(text: str) -> str:
    """Returns the text without escape codes. Styled parts are put into brackets."""
    pieces = _STYLE.split(text)
    parts, style = [_CONTROL.sub("", pieces[0])], set[str]()
    for codes, piece in zip(pieces[1::2], pieces[2::2], strict=True):
        _change(style, codes)
        parts.append(_bracketed(_CONTROL.sub("", piece), style))
    return "".join(parts)


def _bracketed(piece: str, style: set[str]) -> str:
    mark = next((_MARKS[kind] for kind in _MARKS if kind in style), "")
    if not mark:
        return piece
    return "\n".join(mark[0] + line + mark[1] if line else line for line in piece.split("\n"))


def _change(style: set[str], codes: str) -> None:
    for code in _codes(codes):
        if code == 0:
            style.clear()
        elif code in _OFF:
            style.discard(_OFF[code])
        elif kind := _kind(code):
            style.add(kind)


def _kind(code: int) -> str:
    if code == 7 or 40 <= code <= 48 or 100 <= code <= 107:
        return "back"
    if code == 1:
        return "bold"
    return "fore" if 30 <= code <= 38 or 90 <= code <= 97 else ""


def _codes(codes: str) -> Iterator[int]:
    numbers = iter([int(code or 0) for code in codes.split(";")])
    for code in numbers:
        yield code
        if code in (38, 48):
            # The number of the colour follows, as `5;n` or `2;r;g;b`.
            for _ in range({5: 1, 2: 3}.get(next(numbers, 0), 0)):
                next(numbers, None)
