"""A trajectory as a conversation that a person reads.

A trajectory has a tab for each branch: the main conversation, branches of the rollout, another
speaker's conversation, and the conversation as it was before the rollout changed earlier messages.
A tab lists the messages as the model saw them, with the steps in between that no message shows.
"""

from collections.abc import Iterator, Sequence

import msgspec
from msgspec import Struct

from holdfast.records.conversation import main_end, referenced
from holdfast.records.encoding.tokens import count, unpack_logprobs
from holdfast.records.history import History
from holdfast.records.message import Message, Role
from holdfast.records.step import (
    EnvironmentStepped,
    Generated,
    Step,
    ToolIntent,
    ValueRecorded,
    path_order,
)
from holdfast.records.view import TrajectoryView, other_speakers, spoken_elsewhere

MAX_ITEMS = 100
MAX_BYTES = 90_000
"""The largest size of one part of a conversation. A part has at least one item, even if that item
is larger."""
MAX_TEXT = 4_000
MAX_CALLS = 40
MAX_IMAGE = 1_500_000
_IMAGES = ("data:image/png;", "data:image/jpeg;", "data:image/gif;", "data:image/webp;")


class Tab(Struct, frozen=True):
    """One branch of a trajectory, named by its last reply."""

    path: str
    """The path of the last reply; "" for a trajectory without replies."""
    title: str
    replies: int


class Item(Struct):
    """One message or step."""

    kind: str
    """The kind of the item, which sets its colour: system, user, assistant, tool, environment,
    value."""
    who: str
    text: str = ""
    path: str = ""
    """The path of its step; "" for a message that is not a step."""
    reasoning: str = ""
    request: str = ""
    """The request to a tool or an environment."""
    calls: list[tuple[str, str]] = []
    facts: list[str] = []
    error: str = ""
    reward: float | None = None
    calls_are_steps: bool = False
    """Whether the reply's tool calls follow as items of their own."""
    images: list[str] = []
    elsewhere: list[str] = []
    """The addresses of images that the journal does not hold. These images are not fetched."""
    is_reply: bool = False
    """Whether the item is a reply with recorded tokens."""

    @property
    def size(self) -> int:
        texts = (self.text, self.reasoning, self.request, self.error)
        calls = sum(min(len(arguments), MAX_TEXT) for _, arguments in self.calls[:MAX_CALLS])
        images = sum(map(len, self.images))
        return 400 + sum(min(len(text), MAX_TEXT) for text in texts) + calls + images // 8


def tabs_of(view: TrajectoryView) -> list[Tab]:
    """Returns the branches, the main conversation first."""
    history = view.history
    main, others = main_end(history), other_speakers(view)
    if main is None:
        return [Tab("", "conversation", 0)]
    continued = {step.base for step in history.generations if not step.prefix_break}
    leaves = [step for step in history.generations if step.path not in continued]
    leaves.sort(key=lambda step: (step is not main, path_order(step.path)))
    return [_tab(history, step, main=main, others=others) for step in leaves]


def _tab(history: History, last: Generated, *, main: Generated, others: set[str]) -> Tab:
    replies = 0
    step: Step | None = last
    while isinstance(step, Generated):
        replies += 1
        step = history.steps[step.base] if step.base and not step.prefix_break else None
    if last is main:
        return Tab(last.path, "conversation", replies)
    who = f" of {last.model}" if last.path in others else ""
    kind = "branch" if "." in last.path else "until step"
    return Tab(last.path, f"{kind} {last.path}{who}", replies)


def items_of(view: TrajectoryView, tab: Tab) -> list[Item]:
    """Returns the messages and steps of a branch."""
    history = view.history
    last = history.steps.get(tab.path)
    reader = _Reader(view)
    entries = referenced(history, view.task, last if isinstance(last, Generated) else None)
    items: list[Item] = []
    extras = reader.extras(tab, {reference for _, reference in entries})
    for message, reference in entries:
        path = _path_of(reference)
        if path:
            items += reader.until(extras, path)
        items.append(reader.item(message, reference))
    items += reader.until(extras, "")
    return [*items, *reader.unfinished(tab)]


def _path_of(reference: str) -> str:
    kind, _, path = reference.partition(":")
    return path if kind in ("reply", "tool", "env") else ""


class _Reader:
    """Makes the items of one trajectory's conversations."""

    def __init__(self, view: TrajectoryView):
        self._view = view
        self._history = view.history
        self._others = other_speakers(view)
        self._spoken = spoken_elsewhere(view, self._others)
        self._has_tools = any(isinstance(s, ToolIntent) for s in view.history.steps.values())
        self._scopes = {_scope(step.path) for step in view.history.generations}

    def extras(self, tab: Tab, references: set[str]) -> list[Step]:
        """Returns the steps of the branch that are not shown as messages, the last step first."""
        scope = _scope(tab.path)
        steps: list[Step] = [
            step
            for step in self._history.in_order
            if not isinstance(step, Generated)
            and self._home(step.path) == scope
            and not {f"tool:{step.path}", f"env:{step.path}"} & references
        ]
        return steps[::-1]

    def _home(self, path: str) -> str:
        """Returns the scope of the innermost conversation around a step. The step is shown in that
        conversation."""
        scope = _scope(path)
        while scope and scope not in self._scopes:
            scope = _scope(_scope(scope))
        return scope

    def until(self, extras: list[Step], path: str) -> Iterator[Item]:
        """Removes the steps before `path` from the end of `extras`, and yields them as items. If
        `path` is "", takes all steps."""
        while extras and (not path or path_order(extras[-1].path) < path_order(path)):
            yield self._step(extras.pop())

    def item(self, message: Message, reference: str) -> Item:
        path = _path_of(reference)
        step = self._history.steps.get(path) if path else None
        if isinstance(step, Generated):
            return self._reply(step)
        if step is not None:
            return self._step(step)
        return self._message(message, is_given=reference.startswith("task:"))

    def _message(self, message: Message, *, is_given: bool) -> Item:
        kind, who = message.role.value, message.role.value
        speaker = None if is_given else self._spoken.get(message.text)
        if message.role is Role.DEVELOPER:
            kind = "system"
        if message.role is Role.USER and speaker:
            kind, who = "simulated", f"user, simulated by {speaker}"
        if message.role is Role.TOOL:
            who = f"tool {message.name}" if message.name else "tool"
        item = Item(kind, who, message.text, reasoning=message.reasoning or "")
        return _with_parts(item, message)

    def _reply(self, step: Generated) -> Item:
        other = step.path in self._others
        who = f"{step.model} (another speaker)" if other else "assistant"
        item = Item(
            "simulated" if other else "assistant",
            who,
            step.message.text,
            path=step.path,
            reasoning=step.message.reasoning or "",
            facts=reply_facts(step),
            is_reply=bool(step.ids),
            calls_are_steps=self._has_tools,
        )
        return _with_parts(item, step.message)

    def _step(self, step: Step) -> Item:
        match step:
            case ToolIntent():
                return self._tool(step)
            case EnvironmentStepped():
                return _environment(step)
            case ValueRecorded():
                return Item(
                    "value", f"recorded value {step.name}", value_text(step.value), path=step.path
                )
            case Generated():
                return self._reply(step)

    def _tool(self, step: ToolIntent) -> Item:
        result = self._history.results.get(step.path)
        item = Item("tool", f"tool {step.name}", path=step.path, request=step.arguments)
        if result is None:
            return msgspec.structs.replace(item, facts=["no result yet"])
        return msgspec.structs.replace(
            item,
            text=result.content,
            error=result.error,
            reward=result.reward,
            facts=[f"{result.seconds:.2f} s"],
        )

    def unfinished(self, tab: Tab) -> list[Item]:
        """Returns an item for each reply that is being sampled, with the number of its durable
        tokens."""
        scope = _scope(tab.path)
        return [
            Item(
                "assistant",
                "assistant, being sampled",
                path=path,
                facts=[f"{count(draft.ids):,} durable tokens so far"],
            )
            for path, draft in self._history.drafts.items()
            if _scope(path) == scope
        ]


def _scope(path: str) -> str:
    return path.rpartition(".")[0]


def _environment(step: EnvironmentStepped) -> Item:
    ends = ["done"] if step.done else ["truncated"] if step.truncated else []
    item = Item(
        "environment",
        "environment",
        step.observation,
        path=step.path,
        request=step.action,
        error=step.error,
        facts=[f"{step.seconds:.2f} s", *ends],
    )
    if step.is_opening:
        item.who, item.request = "environment opened", f"seed {step.action}"
    else:
        item.reward = step.reward
    return item


def _with_parts(item: Item, message: Message) -> Item:
    """Adds tool calls and images. Only images that the journal holds are shown."""
    item.calls = [(call.name, call.arguments) for call in message.tool_calls]
    for url in message.images:
        if url.startswith(_IMAGES) and len(url) <= MAX_IMAGE:
            item.images.append(url)
        else:
            item.elsewhere.append(f"{url[:200]}{'…' if len(url) > 200 else ''}")
    return item


def reply_facts(step: Generated) -> list[str]:
    counted, facts = step.counted, []
    if step.ids or step.usage:
        facts.append(f"{counted.completion_tokens:,} tokens, prompt of {counted.prompt_tokens:,}")
    facts.append(step.finish_reason)
    facts += [f"{step.seconds:.2f} s"] if step.seconds else []
    logprobs = unpack_logprobs(step.logprobs)
    facts += [f"mean logprob {sum(logprobs) / len(logprobs):.3f}"] if logprobs else []
    versions = dict.fromkeys(span.version or "unknown" for span in step.versions)
    facts += [f"version {', '.join(versions)}"] if versions else []
    facts += [f"{step.tries} tries"] if step.tries > 1 else []
    facts += [f"went on at token {', '.join(map(str, step.seams))}"] if step.seams else []
    facts += [f"prefix break: {step.prefix_break}"] if step.prefix_break else []
    return facts


def value_text(packed: bytes) -> str:
    """Returns a recorded value as text, even if JSON cannot express it."""
    try:
        return repr(msgspec.msgpack.decode(packed))
    except msgspec.DecodeError:
        return f"{len(packed)} bytes that are not a value"


def parts_of(items: Sequence[Item]) -> list[range]:
    """Divides items into parts that are each small enough for one page. Returns the range of
    indices of each part."""
    parts, start, size = [], 0, 0
    for at, item in enumerate(items):
        if at > start and (size + item.size > MAX_BYTES or at - start >= MAX_ITEMS):
            parts.append(range(start, at))
            start, size = at, 0
        size += item.size
    return [*parts, range(start, len(items))]
