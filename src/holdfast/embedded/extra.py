"""The extra `local`: torch and transformers, which only this package uses, when it runs."""

import importlib.util

from holdfast.records.errors import UsageError

PACKAGES = ("torch", "transformers", "safetensors", "tokenizers", "jinja2")


def require() -> None:
    """Raises `UsageError` in one line when the extra is not installed. Imports nothing heavy."""
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise UsageError(
            f"the embedded engine needs {', '.join(missing)}; install it with: "
            "pip install -c constraints.txt '.[local]' (in the clone)"
        )
