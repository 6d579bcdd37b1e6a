"""The extra `evaluation`: pydantic, for rows and results."""

from collections.abc import Iterator
from contextlib import contextmanager

from holdfast.records.errors import UsageError

PACKAGES = ("pydantic", "pydantic_core")


@contextmanager
def needed_by(what: str) -> Iterator[None]:
    """Raises `UsageError`, which names the extra, for an import inside that fails without it."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name not in PACKAGES:
            raise
        raise UsageError(
            f"{what} needs {error.name}; install it with: pip install '.[evaluation]' (in the "
            "clone)"
        ) from error
