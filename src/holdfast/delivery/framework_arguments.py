"""What a plug-in does with each argument of its framework.

Every argument is in one class. The plug-in follows it; or it refuses it, where following it is not
possible; or the argument does not change what is sampled, scored or kept, or the framework itself
acts on it. An argument in no class is one that the framework got later: where it is set, a warning
names it. All of this happens before anything is sampled.
"""

import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from msgspec import Struct

from holdfast.records.errors import UsageError


class Refused(Struct, frozen=True):
    """Why an argument is refused, and what to do."""

    why: str
    unless: tuple[object, ...] = ()
    """Values beside the default that change nothing."""


class ArgumentTable(Struct, frozen=True):
    """The arguments of one framework, by their classes."""

    framework: str
    followed: frozenset[str]
    refused: Mapping[str, Refused]
    irrelevant: frozenset[str]
    spelled: Callable[[str], str] = str
    """An argument's name, as its user writes it."""

    @property
    def names(self) -> frozenset[str]:
        return self.followed | self.refused.keys() | self.irrelevant

    def check(self, values: Mapping[str, object], defaults: Mapping[str, object]) -> None:
        """Raises `UsageError` for refused arguments that are set, and warns about set arguments in
        no class. `values` has no arguments of other programs. An argument without a default counts
        as set if it has any value."""
        for name, refused in self.refused.items():
            value = values.get(name, defaults.get(name))
            if _is_set(value, defaults.get(name)) and value not in refused.unless:
                raise UsageError(f"{self.spelled(name)} ({str(value)[:100]}): {refused.why}")
        unknown = [
            self.spelled(name)
            for name in sorted(values.keys() - self.names)
            if _is_set(values[name], defaults.get(name))
        ]
        if unknown:
            warnings.warn(
                f"Holdfast does not know these arguments of {self.framework}, and leaves them to "
                f"it: {', '.join(unknown)}; if they change what is sampled, scored or kept, the "
                "training is not what they ask for",
                stacklevel=2,
            )

    def section(self, config: Any, name: str) -> dict[str, object]:
        """A part of a nested configuration, by names with dots. What the table has by its name is
        not taken apart."""
        value = config
        for part in name.split("."):
            value = value.get(part) if isinstance(value, Mapping) else getattr(value, part, None)
        return {} if value is None else dict(self._leaves(name, value))

    def _leaves(self, name: str, value: Any) -> Iterator[tuple[str, object]]:
        if name in self.names or not isinstance(value, Mapping) or not value:
            yield name, value
            return
        for part, inner in value.items():
            if not str(part).startswith("_"):  # How the framework makes an object of it.
                yield from self._leaves(f"{name}.{part}", inner)


def _is_set(value: object, default: object) -> bool:
    """Whether it has a value other than None, False, "", [] or {}."""
    return bool(value != default and (value or default))


def names(text: str) -> frozenset[str]:
    """Names that are written one after the other."""
    return frozenset(text.split())
