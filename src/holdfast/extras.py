"""Packages beyond the core. One that is not installed is one line, which says what to install.

Code that uses such a package names what it is used for, and the extra that brings it. No other
place reports a package that is missing.
"""

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager

from holdfast.records.errors import UsageError

_LOCAL = ("torch", "transformers", "safetensors", "tokenizers", "jinja2")
_HEAVY = {"local": _LOCAL, "train": (*_LOCAL, "peft")}
"""Extras that bring torch: it takes seconds to import, and gigabytes where it is not pinned."""


@contextmanager
def needed_by(what: str, *, extra: str = "") -> Iterator[None]:
    """An import inside that fails raises `UsageError`. Without `extra`, no extra of ours brings the
    package, and the user installs it by its name."""
    try:
        yield
    except ImportError as error:
        package = (error.name or "").partition(".")[0]
        if package == "holdfast" or not (package or extra):
            raise
        reason = "" if isinstance(error, ModuleNotFoundError) else f", which fails ({error})"
        raise _missing(f"{what} needs {package or extra}{reason}", extra, package) from None


def require(what: str, *, extra: str) -> None:
    """Raises the same error for `local` and `train`, and imports nothing."""
    if absent := [name for name in _HEAVY[extra] if importlib.util.find_spec(name) is None]:
        raise _missing(f"{what} needs {', '.join(absent)}", extra)


def _missing(problem: str, extra: str, package: str = "") -> UsageError:
    if not extra:
        return UsageError(f"{problem}: pip install {package}")
    constraints = "-c constraints.txt " if extra in _HEAVY else ""
    return UsageError(f"{problem}: pip install {constraints}'.[{extra}]' (in the clone)")
