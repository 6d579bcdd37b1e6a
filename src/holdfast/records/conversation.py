"""Builds the conversation of a trajectory, or of one of its branches, from the records."""

from typing import NamedTuple

import msgspec

from holdfast.records.history import History, added_messages, resolve
from holdfast.records.message import Message
from holdfast.records.step import EnvironmentStepped, Generated, ToolIntent, path_order
from holdfast.records.task import Task


class ReferencedMessage(NamedTuple):
    """A message and its reference (see `history.resolve`); "" if the message is recorded in
    place."""

    message: Message
    reference: str


def conversation(history: History, task: Task, last: Generated | None = None) -> list[Message]:
    """Returns the messages of a branch, from its beginning to its last reply, with the answers of
    tools and environments to that reply.

    Without `last`, returns the main conversation. If the main conversation has no reply, returns
    the branch or sub-rollout of the last generation.
    """
    return [entry.message for entry in referenced(history, task, last)]


def referenced(
    history: History, task: Task, last: Generated | None = None
) -> list[ReferencedMessage]:
    """Returns the messages of `conversation`, each with its reference."""
    end = main_end(history)
    last = end if last is None else last
    if last is None:
        return _added_last(history, task) or [
            ReferencedMessage(message, f"task:{at}") for at, message in enumerate(task.messages)
        ]
    messages: list[ReferencedMessage] = []
    for step in _since_break(_chain(history, last)):
        for item, message in zip(step.added, added_messages(history, task, step), strict=True):
            messages.append(ReferencedMessage(message, item if isinstance(item, str) else ""))
        messages.append(ReferencedMessage(step.message, f"reply:{step.path}"))
    added = _added_last(history, task) if last is end else []
    return messages + (added or _answers(history, task, last))


def _added_last(history: History, task: Task) -> list[ReferencedMessage]:
    """Returns the messages that the rollout added after its last reply."""
    added = () if history.finished is None else history.finished.added
    return [
        ReferencedMessage(resolve(history, task, each), each)
        if isinstance(each, str)
        else ReferencedMessage(each, "")
        for each in added
    ]


def _answers(history: History, task: Task, last: Generated) -> list[ReferencedMessage]:
    """Returns the answers of tools and environments to the last reply. No generation follows these
    answers."""
    call_ids = {call.id for call in last.message.tool_calls}
    texts = []
    for step in history.in_order:
        # Engines may use the same ids again in every turn.
        if path_order(step.path) <= path_order(last.path):
            continue
        if isinstance(step, ToolIntent):
            if step.call_id in call_ids and step.path in history.results:
                texts.append(f"tool:{step.path}")
        elif isinstance(step, EnvironmentStepped) and _answers_to(history, step, last):
            texts.append(f"env:{step.path}")
    return [ReferencedMessage(resolve(history, task, each), each) for each in texts]


def _answers_to(history: History, step: EnvironmentStepped, last: Generated) -> bool:
    """Returns whether the step is in the scope of `last` and no other generation lies between
    them."""
    scope = _scope(last.path)
    if step.is_opening or _scope(step.path) != scope:
        return False
    return not any(
        _scope(other.path) == scope
        and path_order(last.path) < path_order(other.path) < path_order(step.path)
        for other in history.generations
    )


def _scope(path: str) -> str:
    return path.rpartition(".")[0]


def shown_tools(history: History, task: Task) -> list[dict[str, object]]:
    """Returns the schemas of all tools that the model was shown in the main conversation, each
    once. They include tools that the last turns no longer showed."""
    last = main_end(history)
    if last is None:
        return list(task.tools)
    shown: list[dict[str, object]] = []
    for text in dict.fromkeys(history.shown_tools.get(step.path) for step in _chain(history, last)):
        tools = task.tools if text is None else msgspec.json.decode(text)
        shown += [tool for tool in tools if tool not in shown]
    return shown


def main_turns(history: History) -> list[Generated]:
    """Returns the generations whose replies `conversation` shows, in order."""
    last = main_end(history)
    return [] if last is None else _since_break(_chain(history, last))


def _chain(history: History, last: Generated) -> list[Generated]:
    """Returns the generations of a branch, from its beginning."""
    chain: list[Generated] = []
    step: Generated | None = last
    while step is not None:
        chain.append(step)
        base = history.steps[step.base] if step.base else None
        step = base if isinstance(base, Generated) else None
    return chain[::-1]


def _since_break(chain: list[Generated]) -> list[Generated]:
    """Returns the generations since the conversation was last rendered from scratch. The first of
    them records all messages."""
    starts = [at for at, step in enumerate(chain) if step.prefix_break]
    return chain[starts[-1] :] if starts else chain


def main_end(history: History) -> Generated | None:
    """Returns the last generation of the main conversation. If there is none, returns the last
    generation of all; None without generations."""
    main = [step for step in history.generations if "." not in step.path]
    return next(reversed(main or history.generations), None)
