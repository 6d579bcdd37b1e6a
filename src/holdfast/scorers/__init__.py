"""Ready scorers are objects that compare a finished trajectory with its task's ground truth.

A rollout's file uses a scorer with the line `score = holdfast.scorers.Numeric()`. An evaluation
calls it with a row, for example `return exact(row)` with `exact = holdfast.scorers.Exact()`. A
scorer with other settings is a different scorer, so a run that continues with it is scored again.

- `answers`: Reads the reply, the answer in it, and the ground truth, which scorers compare.
- `text`: `Exact`, `Contains`, `Regex` and `MultipleChoice`.
- `numeric`: `Numeric`, for numbers within a tolerance.
- `json_schema`: `ValidJson`, for JSON of a given form.
- `code_tests`: `CodeTests`, for programs that pass tests.
"""

from typing import TYPE_CHECKING

from holdfast.lazy_names import lazy_names

if TYPE_CHECKING:
    from holdfast.scorers.code_tests import CodeTests as CodeTests
    from holdfast.scorers.json_schema import ValidJson as ValidJson
    from holdfast.scorers.numeric import Numeric as Numeric
    from holdfast.scorers.text import Contains as Contains
    from holdfast.scorers.text import Exact as Exact
    from holdfast.scorers.text import MultipleChoice as MultipleChoice
    from holdfast.scorers.text import Regex as Regex

_load, __all__ = lazy_names(
    __name__,
    {
        "scorers.text": "Exact Contains Regex MultipleChoice",
        "scorers.numeric": "Numeric",
        "scorers.json_schema": "ValidJson",
        "scorers.code_tests": "CodeTests",
    },
)


def __getattr__(name: str) -> object:
    return _load(name)


def __dir__() -> list[str]:
    return list(__all__)
