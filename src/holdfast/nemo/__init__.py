"""This optional plug-in brings Holdfast's environments and recorded groups into NeMo-RL.

Checked against NeMo-RL's main of August 2026, which it needs (it is not on PyPI).

- `environment`: `HoldfastEnvironment`: any `holdfast.Environment` as an environment of NeMo-RL.
- `arguments`: How each setting of NeMo-RL is treated when its buffer gets recorded groups.
- `buffer`: `BufferFeed`: puts the groups of a `Delivery` into NeMo-RL's replay buffer.
"""

from typing import TYPE_CHECKING

from holdfast.delivery.frameworks import require
from holdfast.lazy_names import lazy_names

TESTED = "main of August 2026"
require("nemo_rl", tested=TESTED, module=__name__, remedy="install it from its repository")

if TYPE_CHECKING:
    from holdfast.nemo.buffer import BufferFeed as BufferFeed
    from holdfast.nemo.environment import HoldfastEnvironment as HoldfastEnvironment

_MODULES = {
    "nemo.buffer": "BufferFeed",
    "nemo.environment": "HoldfastEnvironment",
}
__getattr__, __all__ = lazy_names(__name__, _MODULES)
