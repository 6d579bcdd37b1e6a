"""What makes two scorers the same: their code, their mode, and what they are called with."""

import hashlib
import inspect
import re
from pathlib import Path

from holdfast.evaluation.definition import Definition, Mode, Variant
from holdfast.evaluation.setting import ids_of
from holdfast.rollout.source import without_evaluations

_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def scorer_fingerprint(definition: Definition, variant: Variant) -> str:
    """`name@digest`. Other evaluations in the file, and decorators, are no part of it; everything
    else in the file is, since a scorer may call it."""
    function = definition.function
    digest = hashlib.sha256(_source(definition))
    digest.update(definition.mode.encode())
    # Objects without a text of their own are told apart by their types alone.
    digest.update(_ADDRESS.sub("", repr(sorted(variant.keywords.items()))).encode())
    if definition.mode is Mode.GROUPWISE:
        # Whom a row is compared with is part of how it is judged.
        digest.update("\0".join(ids_of(variant.settings)).encode())
    return f"{function.__name__}@{digest.hexdigest()[:12]}"


def _source(definition: Definition) -> bytes:
    try:
        text = Path(inspect.getfile(definition.function)).read_bytes()
    except (TypeError, OSError):
        return definition.function.__code__.co_code
    return without_evaluations(text, keep=definition.function.__qualname__)
