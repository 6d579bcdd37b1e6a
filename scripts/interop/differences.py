"""Where Holdfast differs from eval-protocol in its examples, and why. `make interop` fails for any
other difference.

The reasons are those of docs/evaluations.md ("How do I move a test from eval-protocol?").
"""

from fnmatch import fnmatchcase
from typing import NamedTuple


class Known(NamedTuple):
    evaluation: str
    """`FILE::FUNCTION`; `*` stands for any part of it."""
    fields: tuple[str, ...]
    reason: str


_BENCHMARKS = "eval_protocol/benchmarks"
_JUDGED = ("score", "is_score_valid", "agg_score", "standard_error", "passed")
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
        ("rows",),
        "eval-protocol does not hand the row's seed to the gym, and plays on a random lake",
    ),
    Known(
        f"{_BENCHMARKS}/test_glm_streaming_compliance.py::*",
        ("finish_reason", "metrics", "reason", "score", "agg_score"),
        "a reply with tool calls ends with `stop` here, and with the engine's `tool_calls` there",
    ),
    Known(
        "eval_protocol/quickstart/*judge*::*",
        ("messages",),
        "a thought in the content stays there here; LiteLLM moves it to `reasoning_content`",
    ),
)

_TRACING = "its tracing service is Fireworks's own, and nothing stands in for it"
_PORT = (
    "eval-protocol starts a gym for each of its runs on one port, and fails while the gym before "
    "is still stopping"
)
NOT_COMPARED: dict[str, str] = {
    f"{_BENCHMARKS}/test_tau_bench_*": _PORT,
    "eval_protocol/quickstart/svg_agent/*": _TRACING,
}
"""Evaluations that eval-protocol itself cannot run here: `FILE::FUNCTION` and the reason."""


def reason_for(evaluation: str, field: str) -> str | None:
    """Why the field may differ in this evaluation; None: it may not."""
    found = (known for known in KNOWN if fnmatchcase(evaluation, known.evaluation))
    return next((known.reason for known in found if field in known.fields), None)


def why_not_compared(evaluation: str) -> str | None:
    names = (name for name in NOT_COMPARED if fnmatchcase(evaluation, name))
    return next((NOT_COMPARED[name] for name in names), None)
