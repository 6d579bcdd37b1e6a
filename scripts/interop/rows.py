"""The rows that an evaluation wrote, here and with eval-protocol itself, compared one by one.

Rows are matched by what they were asked: the evaluation, the model, the messages before the first
reply, and the ground truth. Rows that were asked the same are compared in the order of their
results; rows that are left over, in the order of their questions, which then are a difference.
Ids, times, costs, prefixes of models' names and the white space in a tool's JSON are each package's
own and are not compared.
"""

import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

Fields = dict[str, Any]


class Difference(NamedTuple):
    evaluation: str
    field: str
    row: str
    """What it was asked, for people."""
    ours: object
    theirs: object


def read_rows(folder: Path) -> dict[str, list[Fields]]:
    """The rows of a session, by the name of their evaluation."""
    rows: dict[str, list[Fields]] = defaultdict(list)
    for file in sorted(folder.rglob("*.jsonl")):
        for line in file.read_text().splitlines():
            row = json.loads(line)
            rows[row["eval_metadata"]["name"]].append(row)
    return rows


def differences(evaluation: str, ours: list[Fields], theirs: list[Fields]) -> Iterator[Difference]:
    if len(ours) != len(theirs):
        yield Difference(evaluation, "rows", "all", len(ours), len(theirs))
        return
    for row, its_row in _pairs(ours, theirs):
        for field in row:
            if row[field] != its_row[field]:
                question = str(row["question"])
                yield Difference(evaluation, field, question, row[field], its_row[field])


def _pairs(ours: list[Fields], theirs: list[Fields]) -> Iterator[tuple[Fields, Fields]]:
    """Rows that were asked the same, then the others in the order of their questions."""
    mine, its = _by_question(ours), _by_question(theirs)
    for question in sorted(mine.keys() & its.keys()):
        while mine[question] and its[question]:
            yield mine[question].pop(0), its[question].pop(0)
    rest = ([row for at in sorted(side) for row in side[at]] for side in (mine, its))
    yield from zip(*rest, strict=True)


def _by_question(rows: list[Fields]) -> dict[str, list[Fields]]:
    compared = sorted(map(_compared, rows), key=lambda row: json.dumps(row, sort_keys=True))
    found: dict[str, list[Fields]] = defaultdict(list)
    for row in compared:
        found[str(row["question"])].append(row)
    return found


def _question(row: Fields) -> str:
    messages = row.get("messages") or []
    roles = [message["role"] for message in messages]
    first = roles.index("assistant") if "assistant" in roles else len(roles)
    asked = [[message["role"], _text(message)] for message in messages[:first]]
    params = (row.get("input_metadata") or {}).get("completion_params") or {}
    model = str(params.get("model") or "").rpartition("/")[2]
    return json.dumps([model, asked, row.get("ground_truth")], ensure_ascii=False)


def _compared(row: Fields) -> Fields:
    """What has to be the same, under eval-protocol's names."""
    result = row.get("evaluation_result") or {}
    execution, evaluation = row.get("execution_metadata") or {}, row["eval_metadata"]
    metrics = result.get("metrics") or {}
    return {
        "question": _question(row),
        "score": result.get("score"),
        "is_score_valid": result.get("is_score_valid"),
        "reason": result.get("reason") or None,
        "metrics": {
            name: [metric.get("score"), metric.get("is_score_valid"), metric.get("reason")]
            for name, metric in metrics.items()
        },
        "agg_score": _rounded(result.get("agg_score")),
        "standard_error": _rounded(result.get("standard_error")),
        "passed": evaluation.get("passed"),
        "evaluation_status": (evaluation.get("status") or {}).get("code"),
        "rollout_status": row["rollout_status"]["code"],
        "finish_reason": execution.get("finish_reason"),
        "tool_call_count": execution.get("tool_call_count"),
        "usage": _usage(execution),
        "messages": [_message(message) for message in row.get("messages") or []],
    }


def _rounded(number: float | None) -> float | None:
    return None if number is None else round(number, 9)


def _usage(execution: Fields) -> object:
    usage = execution.get("usage") or {}
    return [usage.get(name) for name in ("prompt_tokens", "completion_tokens")]


def _message(message: Fields) -> Fields:
    calls = [
        [call["function"]["name"], call["function"]["arguments"]]
        for call in message.get("tool_calls") or ()
    ]
    reasoning = message.get("reasoning_content") or None
    return {
        "role": message["role"],
        "content": _text(message),
        "calls": calls,
        "reasoning": reasoning,
    }


def _text(message: Fields) -> str:
    content = message.get("content") or ""
    if not isinstance(content, str):
        content = "".join(part.get("text") or "" for part in content)
    return _as_json(content) if message["role"] == "tool" else content


def _as_json(text: str) -> str:
    """JSON as everybody writes it; any other text as it is."""
    try:
        return json.dumps(json.loads(text))
    except ValueError:
        return text
