"""This optional plug-in runs TRL's trainers on durable rollouts. Tested with TRL 1.16.0, which it
needs.

    trainer = GRPOTrainer(
        model, args=args, train_dataset=rows,
        rollout_func=holdfast.trl.rollouts(solve, score, journal="holdfast.db"),
        reward_funcs=holdfast.trl.reward,
    )

If the training is killed, resume it with `trainer.train(resume_from_checkpoint=True)`. The trainer
asks for the steps after the checkpoint again, and the journal answers.

- `arguments`: How each argument of TRL's configurations is treated.
- `rows`: The trainer's prompts as tasks, and its settings as the settings of a run.
- `session`: A user's options for the rollouts; one training, with its run and its engines.
- `grpo`: `rollouts` and `reward` for `GRPOTrainer`.
- `async_session`: One training of `AsyncGRPOTrainer`: rollouts continue while it trains.
- `async_grpo`: `async_rollouts`: its rollout worker, its weight transfer, its callback.
"""

from typing import TYPE_CHECKING

from holdfast.delivery.frameworks import require
from holdfast.lazy_names import lazy_names

TESTED = "1.16.0"
require("trl", tested=TESTED, module=__name__, remedy="pip install trl")

if TYPE_CHECKING:
    from holdfast.trl.async_grpo import AsyncRollouts as AsyncRollouts
    from holdfast.trl.async_grpo import async_rollouts as async_rollouts
    from holdfast.trl.grpo import reward as reward
    from holdfast.trl.grpo import rollouts as rollouts

_MODULES = {
    "trl.async_grpo": "AsyncRollouts async_rollouts",
    "trl.grpo": "reward rollouts",
}
__getattr__, __all__ = lazy_names(__name__, _MODULES)
