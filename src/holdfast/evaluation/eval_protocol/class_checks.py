"""eval-protocol's own classes, where that package is installed beside Holdfast.

Its reward functions check a message's class with `isinstance`, and score 0 for another class. So
our models become subclasses of its models, once those are imported; their behaviour stays ours.

The package is imported for this only if the evaluation's file names it: the import takes seconds.
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
_OURS = tuple(model for model in vars(models).values() if isinstance(model, type(BaseModel)))


def adopt_models() -> bool:
    """Makes our models subclasses of eval-protocol's. False if those are not imported."""
    module = sys.modules.get(MODELS)
    if module is None:
        return False
    for ours in _OURS:
        _adopt(ours, module)
    return True


def import_models(function: Callable[..., object]) -> None:
    """Imports eval-protocol's models, if the text of the function's file names the package. Called
    before anything is scored."""
    if PACKAGE not in _text_of(function):
        return
    try:
        importlib.import_module(MODELS)
    except ModuleNotFoundError:  # Named only in a comment; a real import fails by itself.
        return
    adopt_models()


def _adopt(ours: type, module: ModuleType) -> None:
    their_model = getattr(module, ours.__name__, None)
    if not isinstance(their_model, type(BaseModel)) or issubclass(ours, their_model):
        return
    if their_model.__module__ != MODELS:  # Only imported there.
        return
    try:
        ours.__bases__ = (*ours.__bases__, their_model)
    except TypeError as error:
        raise UsageError(
            f"eval_protocol is imported beside Holdfast, and its {ours.__name__} cannot be matched "
            f"with ours ({error}): its functions would score 0 for our rows; use only one of them"
        ) from error


def _text_of(function: Callable[..., object]) -> str:
    try:
        return Path(inspect.getfile(function)).read_text(encoding="utf-8", errors="replace")
    except (TypeError, OSError):
        return ""
