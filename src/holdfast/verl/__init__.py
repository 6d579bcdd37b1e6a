"""This optional plug-in runs verl's agent loop on durable rollouts. Tested with verl 0.9.1, which
it needs.

    # agent.py
    import holdfast.verl

    holdfast.verl.agent_loop("calculator", solve, score, journal="holdfast.db")

In verl's configuration, set `actor_rollout_ref.rollout.agent.default_agent_loop=calculator`. Name
the file in `agent_loop_config_path`, or import it in the processes that run agent loops.

- `arguments`: How each setting of verl that an agent loop meets is treated.
- `policy`: A policy over verl's own inference servers.
- `loops`: The agent loop, and how it is registered.
"""

from typing import TYPE_CHECKING

from holdfast.delivery.frameworks import require
from holdfast.lazy_names import lazy_names

TESTED = "0.9.1"
require("verl", tested=TESTED, module=__name__, remedy="pip install verl")

if TYPE_CHECKING:
    from holdfast.verl.loops import agent_loop as agent_loop
    from holdfast.verl.policy import ServerPolicy as ServerPolicy

_MODULES = {
    "verl.loops": "agent_loop",
    "verl.policy": "ServerPolicy",
}
__getattr__, __all__ = lazy_names(__name__, _MODULES)
