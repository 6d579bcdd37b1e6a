"""Reports optional packages that are not installed, in one line that says what to install.

Code that uses such a package names the feature and the extra that installs the package. No other
place reports a missing package.
"""

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager

from holdfast.records.errors import UsageError

_LOCAL = ("torch", "transformers", "safetensors", "tokenizers", "jinja2")
_HEAVY = {"local": _LOCAL, "train": (*_LOCAL, "peft")}
"""The packages of each extra that installs torch. Torch takes seconds to import, and gigabytes of
space if its version is not pinned."""


@contextmanager
def needed_by(what: str, *, extra: str = "") -> Iterator[None]:
    """Raises `UsageError` if the block cannot import an optional package. The message names
    `extra`, which installs the package. If `extra` is empty, the message names the package
    itself."""
    try:
        yield
    except ImportError as error:
        package = (error.name or "").partition(".")[0]
        if package == "holdfast" or not (package or extra):
            raise
        reason = "" if isinstance(error, ModuleNotFoundError) else f", which fails ({error})"
        raise _missing(f"{what} needs {package or extra}{reason}", extra, package) from None


def require(what: str, *, extra: str) -> None:
    """Raises `UsageError` if a package of the extra `local` or `train` is missing, without
    importing the packages."""
    if absent := [name for name in _HEAVY[extra] if importlib.util.find_spec(name) is None]:
        raise _missing(f"{what} needs {', '.join(absent)}", extra)


def _missing(problem: str, extra: str, package: str = "") -> UsageError:
    if not extra:
        return UsageError(f"{problem}: pip install {package}")
    constraints = "-c constraints.txt " if extra in _HEAVY else ""
    return UsageError(f"{problem}: pip install {constraints}'.[{extra}]' (in the clone)")
