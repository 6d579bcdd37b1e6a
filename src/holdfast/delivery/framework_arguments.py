"""Says what a plug-in does with each argument of its framework.

Each known argument is in one of three classes. The plug-in follows an argument of the first class.
It refuses an argument of the second class, because it cannot follow it. The third class,
irrelevant, has arguments that do not change what is sampled, scored or kept, or on which the
framework itself acts. An argument in no class was added to the framework later. If it is set, a
warning names it. These checks happen before anything is sampled.
"""

import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from msgspec import Struct

from holdfast.records.errors import UsageError


class Refused(Struct, frozen=True):
    """The reason why an argument is refused, and what the user can do."""

    why: str
    unless: tuple[object, ...] = ()
    """Values, besides the default, that change nothing and are accepted."""


class ArgumentTable(Struct, frozen=True):
    """The arguments of one framework, grouped into classes."""

    framework: str
    followed: frozenset[str]
    refused: Mapping[str, Refused]
    irrelevant: frozenset[str]
    as_written: Callable[[str], str] = str
    """Returns an argument's name as a user writes it."""

    @property
    def names(self) -> frozenset[str]:
        return self.followed | self.refused.keys() | self.irrelevant

    def check(self, values: Mapping[str, object], defaults: Mapping[str, object]) -> None:
        """Raises `UsageError` for a refused argument that is set, and warns about arguments that
        are set and belong to no class. `values` must not contain arguments of other programs. An
        argument without a default counts as set if it has a value other than None, False, 0, "", []
        or {}."""
        for name, refused in self.refused.items():
            value = values.get(name, defaults.get(name))
            if _is_set(value, defaults.get(name)) and value not in refused.unless:
                raise UsageError(f"{self.as_written(name)} ({str(value)[:100]}): {refused.why}")
        unknown = [
            self.as_written(name)
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
        """Returns a part of a nested configuration, with dotted names as keys. A mapping that the
        table knows by its own name is kept whole."""
        value = config
        for part in name.split("."):
            value = value.get(part) if isinstance(value, Mapping) else getattr(value, part, None)
        return {} if value is None else dict(self._leaves(name, value))

    def _leaves(self, name: str, value: Any) -> Iterator[tuple[str, object]]:
        if name in self.names or not isinstance(value, Mapping) or not value:
            yield name, value
            return
        for part, inner in value.items():
            if not str(part).startswith("_"):  # The framework makes an object of this value.
                yield from self._leaves(f"{name}.{part}", inner)


def _is_set(value: object, default: object) -> bool:
    """Returns whether the value differs from the default. Two empty values (None, False, 0, "", []
    or {}) count as equal."""
    return bool(value != default and (value or default))


def names(text: str) -> frozenset[str]:
    """Returns the names in a text that separates them by spaces."""
    return frozenset(text.split())
