"""The extra `train`: torch, transformers and peft, which only this package and the embedded engine
use, when they run."""

import importlib.util

from holdfast.records.errors import UsageError

PACKAGES = ("torch", "transformers", "safetensors", "tokenizers", "jinja2", "peft")


def require() -> None:
    """Raises `UsageError` in one line when the extra is not installed. Imports nothing heavy."""
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise UsageError(
            f"training needs {', '.join(missing)}; install it with: "
            "pip install -c constraints.txt '.[train]' (in the clone)"
        )
