"""Options that have a meaning only together with another option. If such an option is typed without
the other one, it is refused. A configuration file may still set it, for the commands that use the
other option."""

import argparse
from collections.abc import Collection

from holdfast.engine.options import CLUSTER_CODE, CLUSTER_PROCESSES
from holdfast.records.errors import UsageError

_CLUSTER = (*CLUSTER_PROCESSES[1:], *CLUSTER_CODE)
_BELONG_TO: dict[str, tuple[str, ...]] = {
    "cluster": tuple(option.dest for option in _CLUSTER),
    "score_workers": ("score_concurrency",),
    "eval_tasks": ("eval_every", "eval_samples", "eval_deadline", "eval_max_tokens"),
    "dynamic": ("max_draws",),
    "overlong_length": ("overlong_margin", "overlong_penalty"),
    "lora_rank": ("lora_alpha", "lora_targets"),
    "out": ("tokenizer", "max_megabytes", "force"),
}
"""The dependent options, by the option that they belong to."""
_INDEPENDENT = {("gateway", "workers")}
"""Options that have the name of a dependent option, but another meaning."""


def check_dependent(args: argparse.Namespace, typed: Collection[str]) -> None:
    """Raises `UsageError` if an option was typed without the option that it depends on. `typed` are
    the options of the command line, by their names in Python."""
    for other, names in _BELONG_TO.items():
        for name in names:
            if name not in typed or (args.command, name) in _INDEPENDENT or _is_on(args, other):
                continue
            raise UsageError(
                f"{_option(name)} belongs to {_option(other)}, which is not given: give both, or "
                "neither"
            )


def _is_on(args: argparse.Namespace, name: str) -> bool:
    # DAPO always samples dynamically.
    is_dapo = name == "dynamic" and getattr(args, "loss", "") == "dapo"
    return is_dapo or not hasattr(args, name) or bool(getattr(args, name))


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"
