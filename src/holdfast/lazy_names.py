"""Imports public names of a package at their first use."""

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module


def lazy_names(
    package: str, modules: Mapping[str, str], *, rooms: Sequence[str] = ()
) -> tuple[Callable[[str], object], list[str]]:
    """Returns the package's `__getattr__` and `__all__`. `modules` maps each module to the names
    that it defines, separated by spaces. `rooms` are subpackages that can be used without importing
    them first."""
    where = {name: module for module, names in modules.items() for name in names.split()}

    def load(name: str) -> object:
        if name in rooms:
            return import_module(f"{package}.{name}")
        if name not in where:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value: object = getattr(import_module(f"holdfast.{where[name]}"), name)
        setattr(sys.modules[package], name, value)
        return value

    return load, sorted(where)
