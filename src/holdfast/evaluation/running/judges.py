"""The judges that an evaluation's function names, asked before anything is sampled.

A function may call a judge of its module, of its closure, or one that pytest hands to it. How many
rows it compares at once is its own affair.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping
from types import CodeType
from typing import Any

from holdfast.engine.guards.spending import check_price
from holdfast.engine.judging.judge import Judge
from holdfast.engine.settings import Settings


async def check_judges(
    function: Callable[..., Any], arguments: Mapping[str, object], settings: Settings
) -> None:
    """Raises what is wrong with the engine, the cache or the price of one of them."""
    for judge in judges_of(function, arguments):
        check_price(settings, await judge.check_before_run())


def judges_of(function: Callable[..., Any], arguments: Mapping[str, object]) -> list[Judge]:
    """Each once."""
    function = inspect.unwrap(function)
    around = inspect.getclosurevars(function).nonlocals
    named = [function.__globals__.get(name) for name in _names(function.__code__)]
    own = getattr(arguments.get("self"), "__dict__", {})
    found = [*arguments.values(), *own.values(), *around.values(), *named]
    return list({id(value): value for value in found if isinstance(value, Judge)}.values())


def _names(code: CodeType) -> Iterator[str]:
    """The names that it reads, also in functions inside of it."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)
