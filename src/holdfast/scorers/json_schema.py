"""`ValidJson`: scores whether a reply is JSON of a given form."""

import json
import re
from collections.abc import Iterator, Mapping

from holdfast.engine.scoring.scorer import Score, shown
from holdfast.records.errors import UsageError
from holdfast.rollout.tools.validate import problem
from holdfast.scorers.answers import ReadyScorer, scored

_FENCED = re.compile(r"```(?:json)?[ \t]*\n(.*?)```", re.DOTALL)
UNCHECKED = frozenset(
    {
        *("pattern", "patternProperties", "propertyNames", "format", "multipleOf", "uniqueItems"),
        *("not", "if", "then", "else", "oneOf", "contains", "dependentRequired"),
        *("dependentSchemas", "unevaluatedProperties", "unevaluatedItems"),
    }
)
"""Rules of JSON Schema that are not checked here."""


class ValidJson(ReadyScorer, frozen=True):
    """The reward is 1 if the reply, or its last block in backticks, is JSON that fits the schema.

    `schema` is a dict. Without it, the task's ground truth is the schema. A schema with rules that
    are not checked, such as `pattern` and `format`, is refused, so that no rule is ignored.
    """

    IS_ITS_IDENTITY = True
    schema: dict[str, object] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.schema is not None:
            _check(self.schema, "its schema")

    def score(self, reply: str, wanted: Mapping[str, object]) -> Score:
        blocks = _FENCED.findall(reply)
        text = (blocks[-1] if blocks else reply).strip()
        try:
            wrong = problem(json.loads(text), wanted)
        except (ValueError, RecursionError) as error:
            wrong = f"not JSON: {error}"
        return Score(0.0, reasons={"problem": wrong}) if wrong else scored(True, text)

    def wanted(self, ground_truth: object) -> Mapping[str, object]:
        if self.schema is not None:
            return self.schema
        if not isinstance(ground_truth, Mapping):
            raise UsageError(
                "ValidJson() takes the ground_truth as its schema, which is not a dict: "
                f"{shown(ground_truth)}; or write ValidJson({{…}})"
            )
        _check(ground_truth, "the schema in the ground_truth")
        return ground_truth


def _check(schema: object, where: str) -> None:
    if unchecked := sorted(set(_rules(schema)) & UNCHECKED):
        raise UsageError(
            f"ValidJson does not check {', '.join(unchecked)}, which {where} has; leave it out, "
            "or check it in a scorer of your own"
        )


def _rules(schema: object) -> Iterator[str]:
    """Yields the names of all rules in a schema, including nested schemas. Names of properties
    are not rules.
    """
    if isinstance(schema, list):
        for each in schema:
            yield from _rules(each)
    if not isinstance(schema, Mapping):
        return
    for name, value in schema.items():
        yield name
        if name in ("properties", "$defs", "definitions"):
            yield from _rules(list(value.values()) if isinstance(value, Mapping) else ())
        elif name not in ("enum", "const", "default", "examples", "required"):
            yield from _rules(value)
