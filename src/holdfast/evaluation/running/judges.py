"""Checks the judges that an evaluation's function names, before anything is sampled.

A function may call a judge that is in its module or its closure, that another function of the user
calls, or that pytest passes to it. The function itself decides how many rows it compares at once.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from holdfast.engine.guards.spending import check_price
from holdfast.engine.judging.judge import Judge
from holdfast.engine.settings import Settings
from holdfast.rollout.code.fingerprint import identified_in


async def check_judges(judges: Iterable[Judge], settings: Settings) -> str:
    """Checks the judges, and returns their models under the names that the engines use. Raises an
    error for a wrong engine, cache or price."""
    models = {await judge.check_before_run() for judge in judges}
    for model in models:
        check_price(settings, model)
    return ", ".join(sorted(models))


def judges_of(function: Callable[..., Any], arguments: Mapping[str, object]) -> list[Judge]:
    """Returns the judges that the function can reach, each once."""
    named = [*_judges([inspect.unwrap(function)]), *judges_in(arguments)]
    return list({id(judge): judge for judge in named}.values())


def judges_in(arguments: Mapping[str, object]) -> list[Judge]:
    """Returns the judges among the function's pytest arguments and its instance's attributes."""
    own = getattr(arguments.get("self"), "__dict__", {})
    return _judges([*arguments.values(), *own.values()])


def _judges(candidates: Iterable[object]) -> list[Judge]:
    return [each for each in identified_in(*candidates) if isinstance(each, Judge)]
