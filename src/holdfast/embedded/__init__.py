"""The embedded engine: any Hugging Face causal LM folder, served on this machine.

`Engine` decodes many requests together; `serve` puts it behind HTTP; `EmbeddedEngine` runs that in
a child process. torch and transformers (the extra `local`) are imported when `Engine` is first
asked for, not before.
"""

from typing import Any

from holdfast.embedded.process import EmbeddedEngine
from holdfast.embedded.serving import Settings, serve

__all__ = ["EmbeddedEngine", "Engine", "Settings", "load", "serve"]


def __getattr__(name: str) -> Any:
    from holdfast.embedded import extra

    if name == "Engine":
        extra.require()
        from holdfast.embedded.engine import Engine

        return Engine
    if name == "load":
        extra.require()
        from holdfast.embedded.folder import load

        return load
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
