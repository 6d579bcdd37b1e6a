"""The extra `evaluation`: pydantic, in which rows and results are written."""

from collections.abc import Iterator
from contextlib import contextmanager

from holdfast.records.errors import UsageError

PACKAGES = ("pydantic", "pydantic_core")


@contextmanager
def needed_by(what: str) -> Iterator[None]:
    """An import inside that fails for want of the extra becomes one line that names it."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name not in PACKAGES:
            raise
        raise UsageError(
            f"{what} needs {error.name}; install it with: pip install '.[evaluation]' (in the "
            "clone)"
        ) from error
