"""Suggests the word that a user meant: a known word with nearly the same spelling, or our name for
a name that other tools use."""

from collections.abc import Iterable

from holdfast.records.encoding.near_names import nearest

_NEAR, _NEAR_OPTION, _NEAR_SHORT_OPTION, _SHORT = 0.6, 0.75, 0.85, 6
"""How similar two words must be for a suggestion; 1 means equal. The dashes of options count as
equal."""
_DELETES = ("rm",)
"""Commands that are suggested only if no other name comes close."""
_ELSEWHERE: dict[tuple[str, ...], tuple[str, ...]] = {
    ("--samples",): (
        *("--n", "--k", "--num-samples", "--n-samples", "--num-generations", "--group-size"),
        *("--rollouts-per-example", "--num-rollouts", "--repeats", "--epochs"),
    ),
    ("--groups", "--concurrency"): (
        *("--batch-size", "--train-batch-size", "--bs", "--per-device-train-batch-size"),
    ),
    ("--concurrency",): (
        *("--max-connections", "--max-concurrent", "--parallel", "--jobs", "--threads"),
        *("--num-workers", "--max-workers"),
    ),
    ("--learning-rate",): ("--lr",),
    ("--steps",): ("--max-steps", "--num-steps", "--iterations"),
    ("--epochs",): ("--num-epochs", "--num-train-epochs"),
    ("--max-norm",): ("--max-grad-norm", "--grad-clip", "--gradient-clipping"),
    ("--kl",): ("--beta", "--kl-coef", "--kl-coefficient"),
    ("--checkpoint-every",): ("--save-steps", "--save-every", "--save-interval"),
    ("--keep-checkpoints",): ("--save-total-limit",),
    ("--eval-every",): ("--eval-steps", "--eval-interval"),
    ("--dtype",): ("--bf16", "--fp16", "--precision"),
    ("--lora-rank",): ("--lora-r", "--lora"),
    ("--max-tokens",): (
        *("--max-new-tokens", "--max-completion-tokens", "--max-completion-length", "--max-length"),
    ),
    ("--temperature",): ("--temp",),
    ("--policy",): (
        *("--base-url", "--api-base", "--endpoint", "--url", "--server", "--model-base-url"),
        *("--engine",),
    ),
    ("--api-key-env",): ("--api-key",),
    ("--tasks",): ("--dataset", "--data", "--input", "--inputs", "--prompts"),
    ("--limit",): ("--max-examples", "--num-examples", "--head"),
    ("--scorer",): ("--reward", "--reward-fn", "--reward-function", "--grader", "--score"),
    ("--system",): ("--system-prompt", "--system-message"),
    ("--out",): ("--output", "--output-dir", "--output-file", "--save-dir"),
    ("--run",): ("--name", "--run-name", "--run-id"),
    ("--journal",): ("--db", "--database", "--log-dir"),
    ("--max-retry",): ("--retries", "--max-retries", "--retry-on-error"),
    ("--attempt-deadline",): ("--timeout", "--time-limit"),
    ("--max-cost",): ("--cost-limit", "--budget"),
    ("--max-tokens-total",): ("--token-limit",),
    ("--what",): ("--type", "--kind"),
    ("--track",): ("--wandb", "--report-to", "--tensorboard"),
    ("--device",): ("--gpu", "--cuda"),
    ("run",): ("start", "eval", "evaluate", "rollout"),
    ("runs",): ("list", "ls", "status", "ps"),
    ("show",): ("inspect", "get"),
    ("rm",): ("delete", "remove"),
    ("resume",): ("continue", "retry", "restart"),
    ("logs",): ("log", "tail"),
    ("export",): ("dump", "save"),
    ("compare",): ("diff",),
    ("--help",): ("help",),
    ("--version",): ("version",),
}
"""Names that other tools use, by our names of the same option or command. If we have several, the
first one that the command line knows is suggested."""


def meant(word: str, known: Iterable[str]) -> str | None:
    """Returns the known word that the user probably meant, or None."""
    listed, dashed = list(known), word.replace("_", "-")
    for ours, theirs in _ELSEWHERE.items():
        if dashed in theirs:
            return next((name for name in ours if name in listed), None)
    option = _NEAR_SHORT_OPTION if len(dashed) <= _SHORT else _NEAR_OPTION
    cutoff = option if dashed.startswith("--") else _NEAR
    harmless = [name for name in listed if name not in _DELETES]
    return nearest(dashed, harmless, alike=cutoff) or nearest(dashed, listed, alike=cutoff)
