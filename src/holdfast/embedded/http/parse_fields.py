"""The parameters of a request's body, read one by one: what is wrong is refused by its name.

Nothing is passed over in silence: a parameter that nobody took is refused, unless it says nothing
(its value is the one that changes nothing) or concerns only the books (`user`, `metadata`).
"""

import math
from typing import Any

import msgspec

from holdfast.embedded.http.errors import EngineRequestRejected, bad, malformed, unsupported

_BOOKS = frozenset(
    ("user", "metadata", "store", "service_tier", "request_id", "priority", "cache_salt",
     "safety_identifier", "prompt_cache_key", "spaces_between_special_tokens", "stream_interval",
     "output_kind", "skip_clone")
)  # fmt: skip
_NEUTRAL: dict[str, tuple[object, ...]] = {
    "best_of": (1,),
    "echo": (False,),
    "use_beam_search": (False,),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "repetition_penalty": (1,),
    "top_k": (-1, 0),
    "min_p": (0,),
    "min_tokens": (0,),
    "length_penalty": (1,),
    "logit_bias": ({},),
    "response_format": ({"type": "text"},),
    "return_tokens_as_token_ids": (False,),
    "truncate_prompt_tokens": (),
    "detokenize": (True,),
    "add_special_tokens": (),
    "parallel_tool_calls": (True,),
    "include_reasoning": (True,),
    "suffix": ("",),
    "bad_words": ([],),
    "flat_logprobs": (False,),
    "output_mode": ("tokens",),
    "modalities": (["text"],),
}


class FieldReader:
    """A JSON object whose members are taken out one after another."""

    def __init__(self, members: dict[str, Any], *, where: str = ""):
        self._members = members
        self._where = where

    @classmethod
    def parsed(cls, raw: bytes) -> "FieldReader":
        try:
            members = msgspec.json.decode(raw)
        except (ValueError, RecursionError) as error:
            raise malformed("", f"JSON decode error: {error}") from error
        if not isinstance(members, dict):
            raise malformed("", "Input should be a JSON object")
        return cls(members)

    def take(self, name: str) -> Any:
        """The value, or None: null means the same as nothing."""
        return self._members.pop(name, None)

    def integer(self, name: str, *, least: int, most: int | None = None) -> int | None:
        value = self.take(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int):
            raise self._wrong(name, "an integer")
        if value < least or (most is not None and value > most):
            rule = f"at least {least}" if most is None else f"between {least} and {most}"
            raise bad(name, rule, value)
        return value

    def number(self, name: str, default: float) -> float:
        value = self.take(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._wrong(name, "a number")
        try:
            found = float(value)
        except OverflowError as error:  # JSON's integers have no end
            raise bad(name, "finite", "an integer beyond every float") from error
        if not math.isfinite(found):
            raise bad(name, "finite", found)
        return found

    def flag(self, name: str, *, default: bool = False) -> bool:
        value = self.take(name)
        if value is not None and not isinstance(value, bool):
            raise self._wrong(name, "a boolean")
        return default if value is None else value

    def strings(self, name: str) -> tuple[str, ...]:
        """One string or several; none of them empty."""
        value = self.take(name)
        found = [value] if isinstance(value, str) else value or []
        if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
            raise self._wrong(name, "a string or a list of strings")
        if not all(found):
            raise bad(name, "without empty strings", found)
        return tuple(found)

    def ids(self, name: str) -> list[int] | None:
        value = self.take(name)
        if value is not None and not is_ids(value):
            raise self._wrong(name, "a list of integers")
        return None if value is None else list(value)

    def inner(self, name: str) -> "FieldReader":
        """An object inside this one."""
        value = self.take(name)
        if value is not None and not isinstance(value, dict):
            raise self._wrong(name, "an object")
        return FieldReader(value or {}, where=f"{name}.")

    def finish(self) -> None:
        """Refuses what is left, unless it says nothing."""
        for name, value in self._members.items():
            if value is None or name in _BOOKS or value in _NEUTRAL.get(name, ()):
                continue
            raise unsupported(f"{self._where}{name}")

    def _wrong(self, name: str, rule: str) -> EngineRequestRejected:
        return malformed(f"{self._where}{name}", f"Input should be {rule}")


def is_ids(value: object) -> bool:
    return isinstance(value, list) and all(type(one) is int for one in value)
