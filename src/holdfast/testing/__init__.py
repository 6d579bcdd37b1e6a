"""Tools for testing what is built on Holdfast, and Holdfast itself.

`FakeEngine` is an inference engine without a model, with faults on demand; `ManualClock` is time
that a test moves by hand. Importing this package imports none of them.

- `fake_engine`: An inference engine without a model, with faults on demand.
- `crash_points`: Crash points: ending this process with SIGKILL at an exact moment.
- `faulty_journal`: Journals that fail on purpose, at a place that a test chooses.
- `manual_clock`: A clock that only moves when a test moves it.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.testing.fake_engine.faults import Fault, FaultKind
    from holdfast.testing.fake_engine.handle import FakeEngine
    from holdfast.testing.manual_clock import ManualClock

__all__ = ["FakeEngine", "Fault", "FaultKind", "ManualClock"]

_HOMES = {
    "FakeEngine": "holdfast.testing.fake_engine.handle",
    "Fault": "holdfast.testing.fake_engine.faults",
    "FaultKind": "holdfast.testing.fake_engine.faults",
    "ManualClock": "holdfast.testing.manual_clock",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
