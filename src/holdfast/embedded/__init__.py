"""The embedded engine serves any Hugging Face causal LM folder on this machine.

`load` reads the folder, `DecodeEngine` decodes many requests together, `serve` puts the engine
behind HTTP, and `EmbeddedEngine` runs all of that in a child process. Each is imported when it is
first used. Only `DecodeEngine` and `load` import torch and transformers (the extra `local`).

- `child_process`: The embedded engine as a child process.
- `arguments`: The command line of `holdfast serve`.
- `serving`: The process of `holdfast serve`: binds its port, loads, listens, prints its URL, and
  ends cleanly.
- `http`: The engine's HTTP interface, in vLLM's shape.
- `scheduler`: Chooses the sequences of each pass, and draws their tokens.
- `model`: The model: loading it, its passes, and the proof that batches change no results.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from holdfast.extras import require

if TYPE_CHECKING:
    from holdfast.embedded.arguments import ServeSettings
    from holdfast.embedded.child_process import EmbeddedEngine
    from holdfast.embedded.model.load import load
    from holdfast.embedded.scheduler.engine import DecodeEngine
    from holdfast.embedded.serving import serve

__all__ = [
    "DecodeEngine",
    "EmbeddedEngine",
    "ServeSettings",
    "load",
    "serve",
]

_HOMES = {
    "DecodeEngine": "scheduler.engine",
    "EmbeddedEngine": "child_process",
    "ServeSettings": "arguments",
    "load": "model.load",
    "serve": "serving",
}
_NEED_TORCH = ("DecodeEngine", "load")


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name in _NEED_TORCH:
        require("the embedded engine", extra="local")
    return getattr(import_module(f"holdfast.embedded.{_HOMES[name]}"), name)
