"""Makes eval-protocol's own functions accept Holdfast's models, if eval-protocol is installed.

Its reward functions check a message's class with `isinstance`, and score 0 for another class.
`isinstance` also looks at an instance's `__class__`. Once eval-protocol's models are imported, the
`__class__` of Holdfast's models is a subclass of both classes. Neither class is changed. The
package is imported for this only if the evaluation's file names it, because the import takes
seconds.
"""

import importlib
import inspect
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

from pydantic import BaseModel

from holdfast.evaluation.rows import result, row, status
from holdfast.evaluation.rows.status import SHOWN_CLASSES
from holdfast.records.errors import UsageError

PACKAGE, MODELS = "eval_protocol", "eval_protocol.models"
_OURS = tuple(
    model
    for module in (row, result, status)
    for model in vars(module).values()
    if isinstance(model, type(BaseModel)) and model.__module__ == module.__name__
)


def match_models() -> bool:
    """Makes `isinstance` accept Holdfast's models as eval-protocol's models of the same names.
    Returns False if eval-protocol's models are not imported."""
    module = sys.modules.get(MODELS)
    if module is None:
        return False
    for ours in _OURS:
        theirs = getattr(module, ours.__name__, None)
        # Classes that the module only imports do not count.
        if isinstance(theirs, type(BaseModel)) and theirs.__module__ == MODELS:
            SHOWN_CLASSES[ours] = _subclass_of(ours, theirs)
    return True


@cache
def _subclass_of(ours: type[BaseModel], theirs: type[BaseModel]) -> type:
    """Returns a subclass of both classes with the fields and methods of `ours`. The subclass is
    made without pydantic, because pydantic would merge the fields."""
    names = {"__module__": ours.__module__, "__qualname__": ours.__qualname__}
    try:
        return type.__new__(type(ours), ours.__name__, (ours, theirs), names)
    except TypeError as error:
        raise UsageError(
            f"eval_protocol is imported beside Holdfast, and its {ours.__name__} cannot be matched "
            f"with ours ({error}): its functions would score 0 for our rows; use only one of them"
        ) from error


def import_models(function: Callable[..., object]) -> None:
    """Imports eval-protocol's models, if the text of the function's file names the package. Called
    before anything is scored."""
    if PACKAGE not in _text_of(function):
        return
    try:
        importlib.import_module(MODELS)
    except ModuleNotFoundError:  # The name is only in a comment. A real import fails by itself.
        return
    match_models()


def _text_of(function: Callable[..., object]) -> str:
    try:
        return Path(inspect.getfile(function)).read_text(encoding="utf-8", errors="replace")
    except (TypeError, OSError):
        return ""
