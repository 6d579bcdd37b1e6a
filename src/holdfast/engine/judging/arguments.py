"""Checks the arguments of a judge when it is made. A wrong argument raises an error of one line."""

import inspect
import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeGuard

from msgspec import structs

from holdfast.engine.arguments import address_of, is_policy
from holdfast.engine.connect import EngineAddress
from holdfast.engine.judging.prompt import SINGLE, Rubric
from holdfast.records.encoding.near_names import nearest
from holdfast.records.errors import UsageError
from holdfast.records.sampling import Sampling

EXAMPLE = 'Judge("Is the answer correct?", policy="http://127.0.0.1:8000")'


def check_names(
    init: Callable[..., None], positional: Sequence[object], named: Mapping[str, object]
) -> None:
    """Raises `UsageError` for arguments that `Judge` cannot take: an unknown name, a second
    positional argument, or no rubric or policy."""
    known = [name for name in inspect.signature(init).parameters if name != "self"]
    for name in named:
        if name not in known:
            raise UsageError(f"Judge has no argument {name!r}{_meant(name, known)}")
    if len(positional) > 1:
        raise UsageError(f"Judge takes its rubric, and everything else by its name: {EXAMPLE}")
    if not positional and "rubric" not in named:
        raise UsageError(f"Judge wants a rubric, as in {EXAMPLE}")
    if "policy" not in named:
        raise UsageError(f"Judge wants the policy that judges, as in {EXAMPLE}")


def _meant(name: str, known: Sequence[str]) -> str:
    sampling = [field.name for field in structs.fields(Sampling)]
    near = nearest(name, [*known, *sampling])
    if near is None:
        return f"; it has {', '.join(known)}"
    if near in known:
        return f"; is {near!r} meant?"
    return f"; is sampling={{{near!r}: …}} meant?"


def rubric_from(rubric: object, scale: object) -> Rubric:
    criteria: object = {SINGLE: rubric} if isinstance(rubric, str) else rubric
    if not _are_criteria(criteria):
        raise UsageError(
            "a rubric is a text, or a dict of criteria with their texts, and none is empty: "
            f"{rubric!r:.200}"
        )
    low, high = _ends(scale)
    return Rubric(dict(criteria), low, high)


def _are_criteria(criteria: object) -> TypeGuard[Mapping[str, str]]:
    return (
        isinstance(criteria, Mapping)
        and bool(criteria)
        and all(
            isinstance(name, str) and name.strip() and isinstance(text, str) and text.strip()
            for name, text in criteria.items()
        )
    )


def _ends(scale: object) -> tuple[float, float]:
    ends = scale if isinstance(scale, Sequence) and not isinstance(scale, str) else ()
    if len(ends) != 2 or not all(isinstance(end, int | float) for end in ends):
        raise UsageError(f"scale is two numbers, like (0, 10), not {scale!r:.100}")
    low, high = map(float, ends)
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise UsageError(f"scale goes from a smaller number to a larger one, not {scale!r:.100}")
    return low, high


def check_switch(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise UsageError(f"{name} is True or False, not {value!r:.100}")


def check_key(api_key: object) -> None:
    """Raises `UsageError` if the key is not text. The error does not repeat the value, because it
    could be the key in another form.
    """
    if api_key is not None and not isinstance(api_key, str):
        raise UsageError(f"api_key is a text, not of type {type(api_key).__name__}")


def cache_from(cache: object) -> Path | None:
    if cache is None:
        return None
    if not isinstance(cache, str | os.PathLike) or not os.fspath(cache):
        raise UsageError(f'cache is the path of a file, like "verdicts.db", not {cache!r:.100}')
    return Path(cache)


def address_from(
    policy: object, model: str | None, api_key: str | None, *, needs_key: bool = True
) -> EngineAddress:
    """Returns the address of the judge's policy. If `needs_key`, the provider's key must be set
    already.

    A judge needs only text, so the server renders and the tokenizer is not needed here.
    """
    if policy is None:
        raise UsageError(
            "a judge wants a policy of its own: an address, a provider's model (openai/NAME), or "
            "a policy that is open"
        )
    address = address_of(policy, model=model, api_key=api_key, needs_key=needs_key)
    return structs.replace(address, dialect=address.dialect or "chat") if address.urls else address


def check_open_policy(policy: object, model: object, api_key: object) -> None:
    if is_policy(policy) and (model is not None or api_key is not None):
        raise UsageError("model and api_key go with an address: this judge's policy has its own")
