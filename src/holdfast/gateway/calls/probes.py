"""Finds probes: calls with which a framework tests its model before its agent begins with the task.

For example, Inspect has a reasoning model say "hello, world" to find out what its provider
supports. The answer plays no part in what the agent does, so it earns no reward and is not trained
on. A call is a probe if

- the agent made it before the first call whose prompt has a message of the task in it,
- and no later call shows the answer to the model, as a conversation or as a quotation.

If no prompt has a message of the task in it, the agent knows its task from another source. Probes
cannot be recognized then, and no call counts as a probe.
"""

from collections.abc import Sequence

from holdfast.records.history import History, added_messages
from holdfast.records.message import Role
from holdfast.records.step import Called, Generated
from holdfast.records.task import Task


def probes(history: History, task: Task) -> list[str]:
    """Returns the paths of the generations that answered probes. Call it when the agent is done."""
    calls = sorted(history.calls.values(), key=lambda call: int(call.path.partition(".")[0]))
    texts = [message.text.strip() for message in task.messages if message.role is Role.USER]
    about_task = (at for at, call in enumerate(calls) if _shows(history, task, call, texts))
    return [
        path
        for at, call in enumerate(calls[: next(about_task, 0)])
        if not _is_used(history, task, call, calls[at + 1 :])
        for path in call.choices
    ]


def _generations(history: History, call: Called) -> list[Generated]:
    steps = (history.steps.get(path) for path in call.choices)
    return [step for step in steps if isinstance(step, Generated)]


def _shows(history: History, task: Task, call: Called, texts: Sequence[str]) -> bool:
    """Returns whether the call added one of the texts to the conversation."""
    first = _generations(history, call)[:1]
    prompt = [message.text for step in first for message in added_messages(history, task, step)]
    return any(text in message for message in prompt for text in texts if text)


def _is_used(history: History, task: Task, call: Called, later: Sequence[Called]) -> bool:
    """Returns whether a later call continues the conversation or quotes an answer."""
    replies = [step.message for step in _generations(history, call)]
    sources = {source for step in history.generations for source in step.sources}
    if any(reply.tool_calls for reply in replies) or not sources.isdisjoint(call.choices):
        return True
    texts = [reply.text.strip() for reply in replies]
    return any(_shows(history, task, other, texts) for other in later)
