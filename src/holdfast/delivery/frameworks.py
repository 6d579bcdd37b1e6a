"""Checks which version of a framework is installed, and which versions were tested.

The module imports no framework and little else, so that the error for a missing framework comes at
once.
"""

import importlib.util
import warnings

from holdfast.records.errors import UsageError


class FrameworkMissing(UsageError, ImportError):
    """Raised when the framework of a plug-in is not installed."""


def require(package: str, *, tested: str, module: str, remedy: str) -> None:
    """Raises a one-line `FrameworkMissing` if the package is missing. Warns if its version is not
    the `tested` one."""
    if not _is_here(package):
        raise FrameworkMissing(
            f"{module} needs {package}, which is not installed (tested with {tested}): {remedy}"
        )
    import importlib.metadata  # Importing it takes half of the time of raising the error.

    try:
        installed = importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return  # A clone on the path has no version.
    # `tested` may be a date instead of a version.
    if tested[:1].isdigit() and installed.split(".")[:2] != tested.split(".")[:2]:
        warnings.warn(
            f"{module} was tested with {package} {tested}, and {installed} is installed",
            stacklevel=3,
        )


def _is_here(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ValueError:
        return False  # Somebody removed it from sys.modules.
