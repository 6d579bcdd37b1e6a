"""The embedded engine: any Hugging Face causal LM folder, served on this machine.

`Engine` decodes many requests together; `serve` puts it behind HTTP; `EmbeddedEngine` runs that in
a child process. Each is imported when it is first asked for: torch and transformers (the extra
`local`) with `Engine` and `load`, not before.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.embedded.engine import Engine
    from holdfast.embedded.folder import load
    from holdfast.embedded.process import EmbeddedEngine
    from holdfast.embedded.serving import serve
    from holdfast.embedded.settings import Settings

__all__ = ["EmbeddedEngine", "Engine", "Settings", "load", "serve"]

_HOMES = {
    "EmbeddedEngine": "process",
    "Engine": "engine",
    "Settings": "settings",
    "load": "folder",
    "serve": "serving",
}
_HEAVY = ("Engine", "load")


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name in _HEAVY:
        import_module("holdfast.embedded.extra").require()
    return getattr(import_module(f"holdfast.embedded.{_HOMES[name]}"), name)
