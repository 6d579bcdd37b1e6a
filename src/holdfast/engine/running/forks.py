"""Makes forks, which are new trajectories that begin with the recorded steps of another one.

The log of a fork begins with the records that a kill just before the turn would have left: the
present steps of the other trajectory, without its attempts and failures. A `Reused` record marks
their end, and an `Edited` record holds what the user changed. Replay does the rest. The other
trajectory is only read. The run's description holds a digest of these records. So all its
trajectories begin with the same tokens, even if the other trajectory changes in between.
"""

import hashlib
from collections.abc import Sequence

import msgspec
from msgspec import Struct, structs

from holdfast.engine.export.export import history_of
from holdfast.engine.running.reuse import Beginning
from holdfast.journal.sql.find_run import run_named
from holdfast.journal.sql.journal import Journal
from holdfast.journal.types import TrajectoryRow
from holdfast.policy.rendering.reasoning_effort import renderer_at
from holdfast.policy.rendering.renderer import Renderer
from holdfast.records.conversation import referenced
from holdfast.records.encoding.codec import encode
from holdfast.records.errors import UsageError
from holdfast.records.history import History, stream_of
from holdfast.records.message import Message, user
from holdfast.records.run import ForkOrigin, Run, RunSpec, seed_for
from holdfast.records.step import (
    Called,
    Edited,
    Generated,
    Record,
    Snapshotted,
    Step,
    ToolIntent,
    ToolResult,
    ancestors,
    call_turn,
)
from holdfast.records.task import Task, content_digest
from holdfast.rollout.replay.divergence import name_of
from holdfast.rollout.replay.prompt import Stream

MAX_NAMED = 20


class Fork(Struct, frozen=True):
    """The forks of one turn, which become the group of one task in a run of their own."""

    origin: ForkOrigin
    spec: RunSpec
    """The spec of the run that has the other trajectory."""
    task: Task
    history: History
    """The history of the other trajectory."""
    step: Generated
    """The turn of the other trajectory at which the forks begin."""
    given: list[Message]
    """The conversation that the model was given in the other trajectory."""
    edited: list[Message]
    """The conversation that the model is given in a fork, with the user's changes."""
    records: tuple[Record, ...]
    """The records with which each fork begins."""

    def seed(self) -> int | None:
        """Returns the seed of the forks, which differs from the other trajectory's seed. Returns
        None if the other trajectory's run has no seed."""
        name = f"fork at {self.origin.step}"
        return seed_for(
            self.spec.seed, task=self.task.id, sample=self.origin.sample, life=0, path=name
        )

    def check(self, renderer: Renderer) -> None:
        """Raises `UsageError` if the renderer turns the conversation of the turn into other tokens
        than the recorded ones. Also raises it if the renderer cannot express the edit without
        changing earlier tokens."""
        step, stream = self.step, self._stream()
        renderer = renderer_at(renderer, step.sampling)
        tools = _tools(self.history, self.task, step)

        def prompt(messages: list[Message]) -> tuple[int, bytes, str]:
            made = stream.next_prompt(messages, tools, renderer=renderer, sampling=step.sampling)
            return made.keep, made.delta.tobytes(), made.prefix_break

        if prompt(self.given)[:2] != (step.keep, step.delta):
            raise UsageError(
                f"the renderer {renderer.name!r} makes other tokens of step {step.path} than "
                f"{_name(self.origin)} has: fork it with the model and tokenizer that sampled it"
            )
        why = prompt(self.edited)[2]
        if why and not step.prefix_break:
            raise UsageError(
                f"the renderer {renderer.name!r} cannot express the edit of step {step.path} "
                f"without changing tokens before it: {why}"
            )

    def _stream(self) -> Stream:
        history, base = self.history, self.step.base
        if not base:
            return Stream()
        before = history.steps[base]
        assert isinstance(before, Generated), "a base is always a generation"
        messages = [*_messages_before(history, self.task, before), before.message]
        tools = _tools(history, self.task, before)
        return Stream.after(stream_of(history, base), before, messages, tools)


async def fork_at(
    journal: Journal,
    run: Run,
    row: TrajectoryRow,
    at: str,
    *,
    say: str | None = None,
    edit: str | None = None,
) -> Fork:
    """Returns the forks of a trajectory at a step. `say` is a user message that is added before the
    turn. `edit` is the new text of the last message that the turn was given. If a tool or an
    environment answered at the step, `edit` is the new text of that answer.

    Raises `UsageError` if the trajectory cannot be forked in this way, and `JournalCorrupt` if the
    log is damaged.
    """
    if say is not None and edit is not None:
        raise UsageError("say adds a message, edit changes one (--say, --edit): give one of them")
    if "" in (say, edit):
        raise UsageError("the text for the fork is empty: give some, or neither say nor edit")
    history = await history_of(journal, row)
    [task] = await journal.tasks(run, ordinals=[row.ordinal])
    step, place = _turn_at(history, at, edits=edit is not None, name=str(row.key))
    records = _beginning(await journal.history(row.id), history, step)
    given, name = _messages_before(history, task, step), _name_of_turn(history, step)
    change = None if say is None else Edited(name, 0, (user(say),))
    if edit is not None and place is not None:
        new = structs.replace(given[place], content=edit)
        change = Edited(name, -place, (new, *given[len(given) + place + 1 :]))
    edited = list(given)
    if change is not None:
        change.apply(edited)
    if edit is not None:
        reference = f"tool:{at}" if place is None else step.added[place]
        answer = _answer_of(history, records, reference)
        if answer is not None:  # The rollout sees it, and gives it to the model itself.
            records[records.index(answer)] = structs.replace(answer, content=edit, error="")
            change = None
    last_edit = _joined(history.edits.get(name), change)
    records += [] if last_edit is None else [last_edit]
    digest = _digest(records, task, step)
    origin = ForkOrigin(run.spec.name, task.id, row.key.sample, at, digest, say=say, edit=edit)
    return Fork(origin, run.spec, task, history, step, given, edited, tuple(records))


async def recorded_fork(journal: Journal, origin: ForkOrigin) -> Fork:
    """Returns the forks that a run's description names. Raises `UsageError` if the trajectory is
    gone, or if its records have changed since."""
    run = await run_named(journal, origin.run)
    row = await find_row(journal, run, f"{origin.task}/{origin.sample}")
    fork = await fork_at(journal, run, row, origin.step, say=origin.say, edit=origin.edit)
    if fork.origin != origin:
        raise UsageError(
            f"{_name(origin)} has other records before step {origin.step} than when it was "
            "forked: fork it again, under another name"
        )
    return fork


async def find_row(journal: Journal, run: Run, name: str) -> TrajectoryRow:
    """Returns the trajectory TASK/SAMPLE of a run. Raises `UsageError` if there is none."""
    rows = await journal.trajectories(run)
    for row in rows:
        if name in (f"{row.key.task}/{row.key.sample}", str(row.key)):
            return row
    raise UsageError(
        f"run {run.spec.name!r} has no trajectory {name!r}; its first one is "
        f"{rows[0].key.task}/{rows[0].key.sample}"
    )


async def find_beginnings(journal: Journal, run: Run, origin: ForkOrigin) -> dict[int, Beginning]:
    """Returns the records with which forks of a run begin, by the forks' numbers. Leaves out forks
    that have begun."""
    rows = [row for row in await journal.trajectories(run) if not (row.records or row.resting)]
    if not rows:
        return {}
    fork = await recorded_fork(journal, origin)
    return {row.id: Beginning(origin.run, origin.step, fork.records) for row in rows}


# --- where a fork begins


def _turn_at(history: History, at: str, *, edits: bool, name: str) -> tuple[Generated, int | None]:
    """Returns the turn to fork at, and the index of the message to edit, counted from the end. The
    index is None if `at` is a tool's answer that no message shows."""
    step = history.steps.get(at)
    if step is None:
        raise UsageError(f"{name} has no step {at!r}; {_listed(history)}")
    around = next((path for path in ancestors(at) if path in history.steps), None)
    if around is not None:
        what = f"step {around} ({name_of(history.steps[around])})"
        raise UsageError(f"step {at} of {name} is inside {what}; {_listed(history)}")
    if isinstance(step, Generated):
        _check_tokens(step, name)
        if edits and not step.added:
            raise UsageError(f"step {at} of {name} was given no new message to edit; use say")
        return step, -1
    if not edits:
        raise UsageError(
            f"step {at} of {name} is {name_of(step)}: edit what it gave (--edit), or fork at a "
            f"turn; {_listed(history)}"
        )
    order = list(history.steps)
    later = [history.steps[path] for path in order[order.index(at) :]]
    turns = [turn for turn in later if isinstance(turn, Generated) and turn.trainable]
    for turn in turns:
        for place, reference in enumerate(turn.added[::-1], 1):
            if reference in (f"tool:{at}", f"env:{at}"):
                _check_tokens(turn, name)
                return turn, -place
    if not turns or not isinstance(step, ToolIntent) or step.environment:
        raise UsageError(f"no turn of {name} was given what step {at} ({name_of(step)}) gave")
    _check_tokens(turns[0], name)
    return turns[0], None


def _check_tokens(step: Generated, name: str) -> None:
    if not step.ids:
        raise UsageError(
            f"step {step.path} of {name} has no token ids (its engine gave messages): it cannot be "
            "forked token by token"
        )
    if not step.trainable:
        raise UsageError(f"step {step.path} of {name} is another speaker's, not the policy's")


def _listed(history: History) -> str:
    paths = [step.path for step in history.generations if step.ids and step.trainable]
    more = ", …" if len(paths) > MAX_NAMED else ""
    return f"its turns are at {', '.join(paths[:MAX_NAMED]) or 'no step'}{more}"


def _beginning(records: Sequence[Record], history: History, turn: Generated) -> list[Record]:
    """Returns the records with which a fork begins. These are the records of the present steps
    before the turn, in their order. A call without an answer is left out, so the fork makes the
    call itself."""
    call = _call_of(history, turn)
    together = {turn.path} if call is None else set(call.choices)
    newest = {record.path: at for at, record in enumerate(records) if isinstance(record, Step)}
    end = min(newest[path] for path in together)
    answered = {
        record.path
        for at, record in enumerate(records[:end])
        if isinstance(record, ToolResult) and newest[record.path] < at
    }
    kept: dict[tuple[object, ...], Record] = {}
    paths: set[str] = set()
    calls: set[str] = set()
    for at, record in enumerate(records[:end]):
        if isinstance(record, Step):
            is_open = isinstance(record, ToolIntent) and record.path not in answered
            if newest[record.path] == at and record.path in history.steps and not is_open:
                paths.add(record.path)
                kept["step", record.path] = history.steps[record.path]
        elif isinstance(record, ToolResult) and record.path in paths:
            kept["result", record.path] = record
        elif isinstance(record, Snapshotted) and _is_valid(record, history, paths):
            kept["snapshot", record.environment, record.applied] = record
        elif isinstance(record, Called) and record.path in paths:
            calls.add(call_turn(record.key, record.occurrence))
            kept["call", record.path] = structs.replace(record, received=0)
    edits = (edit for name, edit in history.edits.items() if name in paths or name in calls)
    return [*kept.values(), *edits]


def _is_valid(record: Snapshotted, history: History, paths: set[str]) -> bool:
    world = history.worlds.get(record.environment) if record.environment in paths else None
    return world is not None and (record.applied, record.snapshot) in world.snapshots


def _call_of(history: History, turn: Generated) -> Called | None:
    """Returns the agent's call that the turn answers; None in a rollout of functions."""
    return next((call for call in history.calls.values() if turn.path in call.choices), None)


def _name_of_turn(history: History, turn: Generated) -> str:
    call = _call_of(history, turn)
    return turn.path if call is None else call_turn(call.key, call.occurrence)


# --- what a fork's model is given


def _messages_before(history: History, task: Task, step: Generated) -> list[Message]:
    """Returns the conversation before a reply."""
    entries = referenced(history, task, step)
    end = next(at for at, each in enumerate(entries) if each.reference == f"reply:{step.path}")
    return [entry.message for entry in entries[:end]]


def _tools(history: History, task: Task, step: Generated) -> tuple[dict[str, object], ...]:
    shown = history.shown_tools.get(step.path)
    return task.tools if shown is None else tuple(msgspec.json.decode(shown))


def _answer_of(history: History, records: list[Record], reference: Message | str) -> Record | None:
    """Returns the record of the tool's answer to which `reference` refers. Returns None if a turn
    in `records` has already seen the answer. Also returns None for the answer of an environment,
    because that answer has to fit the environment's state."""
    kind, _, path = reference.partition(":") if isinstance(reference, str) else ("", "", "")
    intent = history.steps.get(path)
    if kind != "tool" or not isinstance(intent, ToolIntent) or intent.environment:
        return None
    if any(isinstance(each, Generated) and reference in each.added for each in records):
        return None
    results = (each for each in records if isinstance(each, ToolResult) and each.path == path)
    return next(results, None)


def _joined(before: Edited | None, after: Edited | None) -> Edited | None:
    """Combines two edits of one turn into one. There are two if the trajectory is itself a fork
    that was edited at this turn."""
    if before is None or after is None:
        return after or before
    kept = len(before.messages) - after.dropped
    messages = (*before.messages[: max(0, kept)], *after.messages)
    return Edited(before.turn, before.dropped + max(0, -kept), messages)


def _digest(records: Sequence[Record], task: Task, step: Generated) -> str:
    parts = [*map(encode, records), content_digest(task).encode(), step.fingerprint]
    return hashlib.sha256(msgspec.msgpack.encode(parts)).hexdigest()[:32]


def _name(origin: ForkOrigin) -> str:
    return f"{origin.run}/{origin.task}/{origin.sample}"
