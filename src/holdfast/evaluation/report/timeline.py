"""Builds the timeline of a trajectory, which has its events in order, as small arrays that the page
draws.

An item begins with a letter for its kind. The page's `DRAW` has the same letters. Items are arrays
for two reasons. Arrays are a third shorter than objects. A search in the raw text does not find
field names.
"""

from collections.abc import Iterator

import msgspec

from holdfast.records.encoding.tokens import unpack_logprobs
from holdfast.records.failure import Failure, fold_traceback
from holdfast.records.history import History, added_messages
from holdfast.records.message import Message, Role
from holdfast.records.step import (
    EnvironmentStepped,
    Generated,
    Step,
    ToolIntent,
    ValueRecorded,
)
from holdfast.records.view import TrajectoryView

Item = list[object]


class TextCutter:
    """Shortens texts to `limit` characters by removing the middle. `cut` says whether any text was
    shortened."""

    def __init__(self, limit: int):
        self._limit = limit
        self.cut = False

    def __call__(self, text: str | None) -> str:
        if not text or len(text) <= self._limit:
            return text or ""
        self.cut = True
        half = self._limit // 2
        left_out = len(text) - 2 * half
        return f"{text[:half]}\n… {left_out:,} characters are left out …\n{text[-half:]}"


def timeline(view: TrajectoryView, cut: TextCutter) -> list[Item]:
    history = view.history
    items: list[Item] = []
    listed: list[Message] = []
    for step in history.in_order:
        if isinstance(step, Generated):
            items += _prompt_items(view, step, cut, listed=listed)
        items.append(_step_item(step, history, cut))
    if not history.generations:
        items = [*(_message_item(message, cut) for message in view.task.messages), *items]
    items += [["k", fork.path, cut(fork.reason), cut(fork.difference)] for fork in history.forks]
    failures = (*history.failures, *history.scoring_failures, *history.close_failures)
    items += [_failure_item(failure, cut) for failure in failures]
    items += _score_items(history, cut)
    return items


def _prompt_items(
    view: TrajectoryView, step: Generated, cut: TextCutter, *, listed: list[Message]
) -> Iterator[Item]:
    """Yields the new messages of a prompt. Results of tools and environments are left out, because
    they have their own items. After a prefix break, the prompt repeats earlier messages, which are
    listed only once."""
    again = list(listed) if step.prefix_break or not step.base else []
    prompt = zip(step.added, added_messages(view.history, view.task, step), strict=True)
    for source, message in prompt:
        kind = source.partition(":")[0] if isinstance(source, str) else ""
        if kind in ("tool", "reply", "env"):
            continue
        if message in again:
            again.remove(message)
            continue
        listed.append(message)
        yield _message_item(message, cut)


def _message_item(message: Message, cut: TextCutter) -> Item:
    return ["m", message.role.value, cut(message.readable), message.name or ""]


def _step_item(step: Step, history: History, cut: TextCutter) -> Item:
    match step:
        case Generated():
            return _reply_item(step, cut)
        case ToolIntent():
            return _tool_item(step, history, cut)
        case EnvironmentStepped():
            ends = "done" if step.done else "truncated" if step.truncated else ""
            kind = "o" if step.is_opening else "e"
            fields = [cut(step.action), cut(step.observation), step.reward, ends, cut(step.error)]
            return [kind, step.path, *fields, round(step.seconds, 3)]
        case ValueRecorded():
            return ["v", step.path, step.name, cut(_format_value(step.value))]


def _reply_item(step: Generated, cut: TextCutter) -> Item:
    message = step.message
    logprobs = unpack_logprobs(step.logprobs)
    versions = ", ".join(dict.fromkeys(span.version for span in step.versions if span.version))
    return [
        "a",
        step.path,
        cut(message.readable),
        cut(message.reasoning),
        [[call.name, cut(call.arguments)] for call in message.tool_calls],
        step.counted.completion_tokens,
        step.finish_reason,
        round(step.seconds, 3),
        step.tries,
        round(sum(logprobs) / len(logprobs), 4) if logprobs else None,
        versions,
        cut(step.prefix_break),
        "" if message.role is Role.ASSISTANT else message.role.value,
    ]


def _tool_item(step: ToolIntent, history: History, cut: TextCutter) -> Item:
    result = history.results.get(step.path)
    item: Item = ["t", step.path, step.name, cut(step.arguments)]
    if result is None:
        return [*item, None, "", 0, None]
    seconds = round(result.seconds, 3)
    return [*item, cut(result.content), cut(result.error), seconds, result.reward]


def _format_value(packed: bytes) -> str:
    try:
        value = msgspec.msgpack.decode(packed)
    except msgspec.DecodeError:  # The rest of the conversation stays readable.
        return f"{len(packed)} bytes that are not value"
    return msgspec.json.encode(_to_json(value)).decode()


def _to_json(value: object) -> object:
    """Returns the value in JSON's types. Bytes, keys that are not text, and infinities become
    text."""
    match value:
        case dict():
            return {str(key): _to_json(inner) for key, inner in value.items()}
        case list() | tuple():
            return [_to_json(inner) for inner in value]
        case None | bool() | int() | str():
            return value
        case float():
            return value if value == value and abs(value) != float("inf") else str(value)
        case _:
            return repr(value)


def _failure_item(failure: Failure, cut: TextCutter) -> Item:
    return [
        "f",
        failure.cause.value,
        failure.phase,
        failure.attempt,
        failure.step,
        cut(failure.line),
        cut(fold_traceback(failure.traceback)),
    ]


def _score_items(history: History, cut: TextCutter) -> list[Item]:
    """Returns the score, even an invalid one, with its reasons."""
    scored = history.scored
    if scored is None:
        return []
    metrics = [[name, value] for name, value in sorted(scored.metrics.items())]
    reasons = [[name, cut(text)] for name, text in sorted(scored.reasons.items())]
    details = cut(msgspec.json.encode(_to_json(scored.details)).decode()) if scored.details else ""
    return [["s", history.reward, metrics, reasons, details]]
