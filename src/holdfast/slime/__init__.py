"""Optional plug-in: slime on durable rollouts.

Checked against slime's main of August 2026, which it needs (it is not on PyPI).

    slime … --rollout-function-path holdfast.slime.generate_rollout \
            --data-source-path holdfast.slime.DataSource \
            --custom-reward-post-process-path holdfast.slime.post_process_rewards \
            --custom-config-path holdfast.yaml

A rollout is a step of the ledger: asked for again, it is the same batch. slime's `save` commits,
its `load` rewinds.

- `arguments`: What becomes of each argument of slime.
- `config`: What the arguments of slime say about a run.
- `rewards`: Normalizing rewards group by group, whatever their size.
- `rollout`: `DataSource` and `generate_rollout`.
"""

from typing import TYPE_CHECKING

from holdfast.delivery.frameworks import require
from holdfast.lazy_names import lazy_names

TESTED = "0.3.0 (main of August 2026)"
require("slime", tested=TESTED, module=__name__, remedy="install it from its repository")

if TYPE_CHECKING:
    from holdfast.slime.rewards import post_process_rewards as post_process_rewards
    from holdfast.slime.rollout import DataSource as DataSource
    from holdfast.slime.rollout import generate_rollout as generate_rollout

_MODULES = {
    "slime.rewards": "post_process_rewards",
    "slime.rollout": "DataSource generate_rollout",
}
__getattr__, __all__ = lazy_names(__name__, _MODULES)
