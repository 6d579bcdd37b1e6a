"""Ready scorers: values that compare a finished trajectory with its task's ground truth.

Using a scorer takes one line: `score = holdfast.scorers.Numeric()` in a rollout's file, or `return
exact(row)` in an evaluation. A scorer with other settings is a different scorer, so a run that
continues with it is scored again.

- `answers`: Reads what is compared: the reply, the answer in it, the ground truth.
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
