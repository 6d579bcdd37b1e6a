"""Several settings on the same row, judged against each other, pair by pair."""

from itertools import combinations

from holdfast.evaluation.models import EvaluateResult, EvaluationRow, Message
from holdfast.evaluation.pytest import SingleTurnRolloutProcessor, evaluation_test


def _length(row: EvaluationRow) -> int:
    last = row.last_assistant_message()
    return len(last.content or "") if last else 0


@evaluation_test(
    input_messages=[
        [
            [Message(role="user", content="Tell me a story.")],
            [Message(role="user", content="Tell me a joke.")],
        ]
    ],
    completion_params=[
        {"temperature": 0.0, "max_tokens": 64},
        {"temperature": 0.7, "max_tokens": 64},
        {"temperature": 1.0, "max_tokens": 64},
    ],
    rollout_processor=SingleTurnRolloutProcessor(),
    mode="groupwise",
)
def test_longest_wins(rows: list[EvaluationRow]) -> list[EvaluationRow]:
    assert len({row.input_metadata.row_id for row in rows}) == 1
    assert len(rows) == 3
    assert sorted(row.input_metadata.completion_params["temperature"] for row in rows) == [
        0,
        0.7,
        1,
    ]
    wins = dict.fromkeys(range(len(rows)), 0.0)
    for a, b in combinations(range(len(rows)), 2):
        first, second = _length(rows[a]), _length(rows[b])
        wins[a] += 1.0 if first > second else 0.5 if first == second else 0.0
        wins[b] += 1.0 if second > first else 0.5 if first == second else 0.0
    for index, row in enumerate(rows):
        row.evaluation_result = EvaluateResult(
            score=wins[index] / (len(rows) - 1), reason=f"{wins[index]} wins"
        )
    return rows
