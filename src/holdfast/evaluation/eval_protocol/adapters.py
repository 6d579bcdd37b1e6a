"""Turns recorded conversations into data sets: an assistant's message becomes the ground truth."""

from collections.abc import Iterable

from holdfast.evaluation.rows.row import EvaluationRow, InputMetadata, Message
from holdfast.records.errors import UsageError


def assistant_to_ground_truth(data: Iterable[EvaluationRow]) -> list[EvaluationRow]:
    """Returns each row without its last message, which becomes the ground truth. Raises
    `UsageError` if that message is not an assistant's."""
    rows = []
    for row in data:
        if not row.messages or row.messages[-1].role != "assistant":
            raise UsageError(
                f"row {row.input_metadata.row_id!r} does not end with an assistant's message"
            )
        rows.append(_row_before(row, len(row.messages) - 1))
    return rows


def multi_turn_assistant_to_ground_truth(data: Iterable[EvaluationRow]) -> list[EvaluationRow]:
    """Returns one row for each assistant message. The row has the messages before the assistant
    message, which is its ground truth.

    If several assistant messages have the same messages before them, only the first of them gives a
    row.
    """
    seen: set[str] = set()
    rows = []
    for row in data:
        for at, message in enumerate(row.messages):
            if message.role != "assistant":
                continue
            before = "\n".join(_format_message(earlier) for earlier in row.messages[:at])
            if before not in seen:
                seen.add(before)
                rows.append(_row_before(row, at))
    return rows


def filter_longest_conversation(data: list[EvaluationRow]) -> list[EvaluationRow]:
    """Returns only the row with the most messages."""
    return [max(data, key=lambda row: len(row.messages))] if data else []


def create_rows_from_indices(count: int, **metadata: object) -> list[EvaluationRow]:
    """Returns `count` rows without messages. Their ids are "0", "1", …, for agents that look up
    their tasks by number."""
    fields = ({**metadata, "row_id": str(index)} for index in range(count))
    return [EvaluationRow(input_metadata=InputMetadata.model_validate(each)) for each in fields]


def _row_before(row: EvaluationRow, at: int) -> EvaluationRow:
    return EvaluationRow(
        messages=[message.model_copy(deep=True) for message in row.messages[:at]],
        tools=row.tools,
        input_metadata=row.input_metadata.model_copy(deep=True),
        ground_truth=_format_message(row.messages[at]),
    )


def _format_message(message: Message) -> str:
    calls = [
        f"[Tool Call: {call.function.name}({call.function.arguments})]"
        for call in message.tool_calls or ()
    ]
    return "\n".join([f"{message.role}: {message.content}", *calls])
