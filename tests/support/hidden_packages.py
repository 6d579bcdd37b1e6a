"""Environments in which some packages cannot be imported, as if they were not installed."""

import os
from pathlib import Path

HIDE = """
import sys

class Hiding:
    def __init__(self, finder):
        self.finder = finder

    def find_spec(self, name, *rest):
        return None if name.partition(".")[0] in {names!r} else self.finder.find_spec(name, *rest)

    def __getattr__(self, name):
        return getattr(self.finder, name)

sys.meta_path[:] = map(Hiding, sys.meta_path)
"""


def hide(names: set[str], folder: Path) -> dict[str, str]:
    """Variables of a Python in which packages with these names cannot be imported, nor in its
    child processes."""
    (folder / "sitecustomize.py").write_text(HIDE.format(names=names))
    return os.environ | {"PYTHONPATH": str(folder)}
