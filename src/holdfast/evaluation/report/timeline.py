"""Timeline: what happened in a trajectory, in order, as small arrays that the page draws.

An item begins with a letter that says what it is (the page's `DRAW` has the same letters). Arrays
rather than objects: they are a third shorter, and a search in the raw text finds no field names.
"""

from collections.abc import Iterator

import msgspec

from holdfast.records.encoding.tokens import count, unpack_logprobs
from holdfast.records.failure import Failure
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


class Cutter:
    """Shortens texts to `limit` characters, keeping head and tail, and remembers that it did."""

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


def timeline(view: TrajectoryView, cut: Cutter) -> list[Item]:
    history = view.history
    items: list[Item] = []
    shown: list[Message] = []
    for step in history.in_order:
        if isinstance(step, Generated):
            items += _asked(view, step, cut, shown=shown)
        items.append(_step(step, history, cut))
    if not history.generations:
        items = [*(_message(message, cut) for message in view.task.messages), *items]
    items += [["k", one.path, cut(one.reason), cut(one.difference)] for one in history.forks]
    items += [_failure(one, cut) for one in _failures(history)]
    items += _score(history, cut)
    return items


def _asked(
    view: TrajectoryView, step: Generated, cut: Cutter, *, shown: list[Message]
) -> Iterator[Item]:
    """The messages that are new; results of tools and environments stand at their own steps.

    Where the prompt was rendered anew, all messages are there again: those are shown once.
    """
    again = list(shown) if step.prefix_break or not step.base else []
    said = zip(step.added, added_messages(view.history, view.task, step), strict=True)
    for given, message in said:
        kind = given.partition(":")[0] if isinstance(given, str) else ""
        if kind in ("tool", "reply", "env"):
            continue
        if message in again:
            again.remove(message)
            continue
        shown.append(message)
        yield _message(message, cut)


def _message(message: Message, cut: Cutter) -> Item:
    return ["m", message.role.value, cut(message.readable), message.name or ""]


def _step(step: Step, history: History, cut: Cutter) -> Item:
    match step:
        case Generated():
            return _reply(step, cut)
        case ToolIntent():
            return _tool(step, history, cut)
        case EnvironmentStepped():
            ends = "done" if step.done else "truncated" if step.truncated else ""
            kind = "o" if step.is_opening else "e"
            told = [cut(step.action), cut(step.observation), step.reward, ends, cut(step.error)]
            return [kind, step.path, *told, round(step.seconds, 3)]
        case ValueRecorded():
            return ["v", step.path, step.name, cut(_value(step.value))]


def _reply(step: Generated, cut: Cutter) -> Item:
    message = step.message
    logprobs = unpack_logprobs(step.logprobs)
    versions = ", ".join(dict.fromkeys(span.version for span in step.versions if span.version))
    return [
        "a",
        step.path,
        cut(message.readable),
        cut(message.reasoning),
        [[call.name, cut(call.arguments)] for call in message.tool_calls],
        count(step.ids),
        step.finish_reason,
        round(step.seconds, 3),
        step.tries,
        round(sum(logprobs) / len(logprobs), 4) if logprobs else None,
        versions,
        cut(step.prefix_break),
        "" if message.role is Role.ASSISTANT else message.role.value,
    ]


def _tool(step: ToolIntent, history: History, cut: Cutter) -> Item:
    result = history.results.get(step.path)
    item: Item = ["t", step.path, step.name, cut(step.arguments)]
    if result is None:
        return [*item, None, "", 0, None]
    seconds = round(result.seconds, 3)
    return [*item, cut(result.content), cut(result.error), seconds, result.reward]


def _value(packed: bytes) -> str:
    try:
        value = msgspec.msgpack.decode(packed)
    except msgspec.DecodeError:  # Whatever it is, the rest of the conversation is readable.
        return f"{len(packed)} bytes that are no value"
    return msgspec.json.encode(_plain(value)).decode()


def _plain(value: object) -> object:
    """Bytes and keys that JSON has no place for, in words; infinities too."""
    match value:
        case dict():
            return {str(key): _plain(inner) for key, inner in value.items()}
        case list() | tuple():
            return [_plain(inner) for inner in value]
        case None | bool() | int() | str():
            return value
        case float():
            return value if value == value and abs(value) != float("inf") else str(value)
        case _:
            return repr(value)


def _failures(history: History) -> list[Failure]:
    return [*history.failures, *history.scoring_failures, *history.close_failures]


def _failure(failure: Failure, cut: Cutter) -> Item:
    return [
        "f",
        failure.cause.value,
        failure.phase,
        failure.attempt,
        failure.step,
        cut(failure.line),
        cut(failure.traceback),
    ]


def _score(history: History, cut: Cutter) -> list[Item]:
    """Also where the scorer declared that there is none: it says why."""
    scored = history.scored
    if scored is None:
        return []
    metrics = [[name, value] for name, value in sorted(scored.metrics.items())]
    reasons = [[name, cut(text)] for name, text in sorted(scored.reasons.items())]
    told = cut(msgspec.json.encode(_plain(scored.details)).decode()) if scored.details else ""
    return [["s", history.reward, metrics, reasons, told]]
