"""This optional plug-in runs slime on durable rollouts.

Checked against slime's main of August 2026, which it needs (it is not on PyPI).

    slime … --rollout-function-path holdfast.slime.generate_rollout \
            --data-source-path holdfast.slime.DataSource \
            --custom-reward-post-process-path holdfast.slime.post_process_rewards \
            --custom-config-path holdfast.yaml

A rollout is a step of the ledger, and is the same batch whenever slime asks for it again. slime's
`save` commits, and its `load` rewinds.

- `arguments`: How each argument of slime is treated.
- `config`: The settings of a run, from slime's arguments.
- `rewards`: Normalizing rewards group by group, whatever the size of a group.
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
