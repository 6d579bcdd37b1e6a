"""Where Holdfast differs from eval-protocol in its examples, and why. `make interop` fails for any
other difference.

The reasons are those of docs/evaluations.md ("How do I move a test from eval-protocol?").
"""

from fnmatch import fnmatchcase
from typing import NamedTuple

from rows import Difference
from stand_ins import THINKS


class Known(NamedTuple):
    evaluation: str
    """`FILE::FUNCTION`; `*` stands for any part of it."""
    fields: tuple[str, ...]
    """Each of them has to differ in some row: what does not differ is not listed."""
    reason: str
    question: str = ""
    """A part of what the row was asked; without it, any row."""

    def covers(self, difference: Difference) -> bool:
        return (
            fnmatchcase(difference.evaluation, self.evaluation)
            and difference.field in self.fields
            and self.question in difference.row
        )


_BENCHMARKS = "eval_protocol/benchmarks"
_JUDGED = ("score", "is_score_valid", "agg_score", "standard_error", "passed")
_GYM_FIELDS = ("finish_reason", "tool_call_count")
_GYM = "a gym's rows have them here; eval-protocol's gym processor writes neither into its rows"
_FAILED = "a row that failed for good is not judged, and fails the test; there it is judged, as 0"
KNOWN: tuple[Known, ...] = (
    Known("tests/test_retry_mechanism.py::test_fail_fast_exceptions", _JUDGED, _FAILED),
    Known("tests/test_retry_mechanism.py::test_*_giveup_function", _JUDGED, _FAILED),
    Known(
        f"{_BENCHMARKS}/test_livebench_data_analysis.py::test_livebench_cta_pointwise",
        ("agg_score", "passed"),
        "no row has a valid score: here such an evaluation has no score and fails, there it is 0 "
        "and passes",
    ),
    Known(
        f"{_BENCHMARKS}/test_frozen_lake.py::*",
        ("question", "messages"),
        "eval-protocol sends the row's seed to the gym after the episode, with the request that "
        "resets it; its gym makes the lake of the episode without a seed, by chance",
    ),
    Known(f"{_BENCHMARKS}/test_frozen_lake.py::*", _GYM_FIELDS, _GYM),
    Known("*/test_tau_bench_*", _GYM_FIELDS, _GYM),
    Known(
        f"{_BENCHMARKS}/test_aime25.py::*",
        ("messages",),
        "a thought at the beginning of the content is reasoning here, whoever the provider is; "
        "LiteLLM leaves it in the content for `fireworks_ai/` models",
        question=THINKS,
    ),
)

NOT_COMPARED: dict[str, str] = {
    "eval_protocol/quickstart/svg_agent/*": (
        "its tracing service is Fireworks's own, and nothing stands in for it"
    ),
}
"""Evaluations that eval-protocol itself cannot run here: `FILE::FUNCTION` and the reason."""


def reason_for(difference: Difference) -> str | None:
    """Why this may differ; None: it may not."""
    return next((known.reason for known in KNOWN if known.covers(difference)), None)


def why_not_compared(evaluation: str) -> str | None:
    names = (name for name in NOT_COMPARED if fnmatchcase(evaluation, name))
    return next((NOT_COMPARED[name] for name in names), None)
