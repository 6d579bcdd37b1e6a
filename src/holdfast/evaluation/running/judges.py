"""The judges that an evaluation's function names, asked before anything is sampled.

A function may call a judge of its module, of its closure, of another function of the user's, or one
that pytest hands to it. How many rows it compares at once is its own affair.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from holdfast.engine.guards.spending import check_price
from holdfast.engine.judging.judge import Judge
from holdfast.engine.settings import Settings
from holdfast.rollout.code.named import identified_in


async def check_judges(judges: Iterable[Judge], settings: Settings) -> str:
    """Their models, as their engines name them. Raises what is wrong with the engine, the cache or
    the price of one of them."""
    models = {await judge.check_before_run() for judge in judges}
    for model in models:
        check_price(settings, model)
    return ", ".join(sorted(models))


def judges_of(function: Callable[..., Any], arguments: Mapping[str, object]) -> list[Judge]:
    """Each once."""
    own = getattr(arguments.get("self"), "__dict__", {})
    named = identified_in(inspect.unwrap(function), *arguments.values(), *own.values())
    return [each for each in named if isinstance(each, Judge)]
