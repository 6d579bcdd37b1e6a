"""slime's own arguments, as its parser adds them to Megatron's: those that tests give."""

import json
from argparse import ArgumentParser
from collections.abc import Callable

_TEXTS = (
    *("prompt-data", "label-key", "save", "reward-key", "eval-reward-key", "rm-type"),
    *("custom-rm-path", "custom-reward-post-process-path", "dynamic-sampling-filter-path"),
    *("custom-generate-function-path", "rollout-sample-filter-path", "opd-type"),
)


def get_slime_extra_args_provider() -> Callable[[ArgumentParser], ArgumentParser]:
    def add_slime_arguments(parser: ArgumentParser) -> ArgumentParser:
        for name in _TEXTS:
            parser.add_argument(f"--{name}", default=None)
        parser.add_argument("--rollout-batch-size", type=int, required=True)
        parser.add_argument("--n-samples-per-prompt", type=int, default=1)
        parser.add_argument("--over-sampling-batch-size", type=int, default=None)
        parser.add_argument("--rollout-top-p", type=float, default=1.0)
        parser.add_argument("--rollout-top-k", type=int, default=-1)
        parser.add_argument("--rollout-temperature", type=float, default=1.0)
        parser.add_argument("--rollout-stop-token-ids", type=int, nargs="+", default=None)
        parser.add_argument("--rollout-max-prompt-len", type=int, default=None)
        parser.add_argument("--eval-temperature", type=float, default=None)
        parser.add_argument("--eval-max-prompt-len", type=int, default=None)
        parser.add_argument("--apply-chat-template-kwargs", type=json.loads, default="{}")
        parser.add_argument("--partial-rollout", action="store_true", default=False)
        parser.add_argument("--group-rm", action="store_true", default=False)
        parser.add_argument("--lr", type=float, default=1e-6)
        parser.add_argument("--of-a-later-slime", type=int, default=3)
        parser.add_argument(
            "--disable-rollout-global-dataset", action="store_false", dest="rollout_global_dataset"
        )
        return parser

    return add_slime_arguments
