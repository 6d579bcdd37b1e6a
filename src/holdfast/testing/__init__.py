"""Tools for testing Holdfast, and code that is built on it.

`FakeEngine` is an inference engine without a model, with faults on demand. `ManualClock` is a clock
that a test moves by hand. `FakeContainers` is a container engine, and `WorldConformance` tests a
provider of worlds. Importing this package does not import its modules.

- `fake_engine`: An inference engine without a model, with faults on demand.
- `fake_containers`: A stand-in for a container engine, with faults on demand.
- `worlds`: The conformance suite of world providers.
- `crash_points`: Ends this process with SIGKILL at an exact moment.
- `manual_clock`: A clock that only moves when a test moves it.
- `virtual_time`: An event loop whose time jumps to the next moment at which something is due.
"""

from typing import TYPE_CHECKING

from holdfast.lazy_names import lazy_names

if TYPE_CHECKING:
    from holdfast.testing.fake_containers import FakeContainers as FakeContainers
    from holdfast.testing.fake_engine.faults import Fault as Fault
    from holdfast.testing.fake_engine.faults import FaultKind as FaultKind
    from holdfast.testing.fake_engine.handle import FakeEngine as FakeEngine
    from holdfast.testing.manual_clock import ManualClock as ManualClock
    from holdfast.testing.virtual_time import run_in_virtual_time as run_in_virtual_time
    from holdfast.testing.worlds import WorldConformance as WorldConformance

_MODULES = {
    "testing.fake_containers": "FakeContainers",
    "testing.fake_engine.faults": "Fault FaultKind",
    "testing.fake_engine.handle": "FakeEngine",
    "testing.manual_clock": "ManualClock",
    "testing.virtual_time": "run_in_virtual_time",
    "testing.worlds": "WorldConformance",
}
__getattr__, __all__ = lazy_names(__name__, _MODULES)
