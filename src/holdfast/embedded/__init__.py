"""The embedded engine: any Hugging Face causal LM folder, served on this machine.

`Engine` decodes many requests together; `serve` puts it behind HTTP; `EmbeddedEngine` runs that in
a child process. Each is imported when it is first asked for: torch and transformers (the extra
`local`) with `Engine` and `load`, not before.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.embedded.arguments import Settings
    from holdfast.embedded.child_process import EmbeddedEngine
    from holdfast.embedded.model.load import load
    from holdfast.embedded.scheduler.engine import Engine
    from holdfast.embedded.serving import serve

__all__ = ["EmbeddedEngine", "Engine", "Settings", "load", "serve"]

_HOMES = {
    "EmbeddedEngine": "child_process",
    "Engine": "scheduler.engine",
    "Settings": "arguments",
    "load": "model.load",
    "serve": "serving",
}
_HEAVY = ("Engine", "load")


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name in _HEAVY:
        import_module("holdfast.embedded.extra").require()
    return getattr(import_module(f"holdfast.embedded.{_HOMES[name]}"), name)
