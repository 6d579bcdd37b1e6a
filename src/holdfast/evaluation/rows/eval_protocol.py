"""eval-protocol's own classes, where that package is installed beside Holdfast.

Its reward functions look at the class of a message before they look into it, and score a 0 where
the class is another. So, once its models are there, ours are subclasses of them: a message or a row
of ours is one of theirs by `isinstance`, with their fields and with our own behaviour.

The package is never imported for this unless the evaluation's file names it: that takes seconds.
"""

import importlib
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

from pydantic import BaseModel

from holdfast.evaluation import models
from holdfast.records.errors import UsageError

PACKAGE, MODELS = "eval_protocol", "eval_protocol.models"
_OURS = tuple(one for one in vars(models).values() if isinstance(one, type(BaseModel)))


def meet_theirs() -> bool:
    """Whether eval-protocol's models are there; if so, its functions know ours from now on."""
    module = sys.modules.get(MODELS)
    if module is None:
        return False
    for ours in _OURS:
        _adopt(ours, module)
    return True


def import_theirs(function: Callable[..., object]) -> None:
    """Before anything is judged, where the function's file names the package, wherever in it."""
    if PACKAGE not in _text_of(function):
        return
    try:
        importlib.import_module(MODELS)
    except ModuleNotFoundError:  # Only named, as in a comment; an import says so itself.
        return
    meet_theirs()


def _adopt(ours: type, module: ModuleType) -> None:
    theirs = getattr(module, ours.__name__, None)
    if not isinstance(theirs, type(BaseModel)) or issubclass(ours, theirs):
        return
    if theirs.__module__ != MODELS:  # It only has the name from elsewhere.
        return
    try:
        ours.__bases__ = (*ours.__bases__, theirs)
    except TypeError as error:
        raise UsageError(
            f"eval_protocol is imported beside Holdfast, and its {ours.__name__} cannot be matched "
            f"with ours ({error}): its functions would score 0 for our rows; do without either"
        ) from error


def _text_of(function: Callable[..., object]) -> str:
    try:
        return Path(inspect.getfile(function)).read_text(encoding="utf-8", errors="replace")
    except (TypeError, OSError):
        return ""
