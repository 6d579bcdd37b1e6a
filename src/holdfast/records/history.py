"""Folds a trajectory's records into the trajectory's present state.

The fold is the only reader of the log. Replay, `show`, export and scoring use its result. The fold
is pure: the same records give the same history, for any number of attempts and workers that wrote
them.
"""

from array import array
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from typing import get_args

from msgspec import Struct, structs

from holdfast.records.encoding.tokens import count, unpack_ids
from holdfast.records.errors import InterruptedCall
from holdfast.records.failure import Failure
from holdfast.records.message import Message, Role, user
from holdfast.records.step import (
    AttemptFailed,
    AttemptStarted,
    Called,
    CallRefused,
    CloseFailed,
    Drafted,
    Edited,
    Entered,
    EnvironmentStepped,
    Finished,
    Forked,
    Generated,
    Record,
    Refilled,
    Reopened,
    Reused,
    Scored,
    ScoringFailed,
    Snapshotted,
    Step,
    ToolIntent,
    ToolResult,
    ValueRecorded,
    is_cut_by,
    path_order,
)
from holdfast.records.task import Task
from holdfast.records.trajectory import Status
from holdfast.records.usage import NOTHING, Usage, UsageByModel, judge_usage


class EpisodeLog:
    """The actions in one environment since its opening, and the environment's snapshots."""

    __slots__ = ("actions", "cuts", "last_step", "snapshots")

    def __init__(self) -> None:
        self.cuts = 0
        """The number of times that actions were removed from the list."""
        self.actions: list[str] = []
        """The paths of steps and tool calls, in the order in which they took effect."""
        self.snapshots: list[tuple[int, bytes]] = []
        """Pairs of a number of actions and the digest of the blob after these actions, oldest
        first."""
        self.last_step = ""
        """The last recorded step, in any episode, at the time of the newest snapshot."""

    def cut(self, is_cut: Callable[[str], bool]) -> None:
        first = next((n for n, action in enumerate(self.actions) if is_cut(action)), None)
        if first is None:
            return
        self.cuts += 1
        # Snapshots from before the first removed step are still valid. Later ones are not.
        self.snapshots = [kept for kept in self.snapshots if kept[0] <= first]
        self.actions = [action for action in self.actions if not is_cut(action)]


CAME_BACK_DIFFERENT = "the environment came back different"
"""The reason of a fork that was made because replayed actions gave other observations than the
recorded ones."""
_CONTAINERS = (dict, list, set)
_STEPS = frozenset((Drafted, ToolResult, *get_args(Step)))
"""The kinds of records that the steps of a rollout write. Nearly all records are of these kinds,
and to ask for the type is much faster than `isinstance` with a union."""
WEIGHTS_LOST = "the weights that it began with are lost"
"""The reason of a fork that was made because a training that repeated steps got other weights than
before."""


class History:
    """The present state of one trajectory, and what led to it."""

    def __init__(self, records: Iterable[Record] = (), *, settled: bool = True):
        """`settled` says whether the journal lists the trajectory as settled, which matters to
        readers of rewards.

        An open trajectory has no score and no reward yet, because another scorer may still score
        it.
        """
        self._settled = settled
        self.steps: dict[str, Step] = {}
        self.results: dict[str, ToolResult] = {}
        self.shown_tools: dict[str, str] = {}
        """The tool schemas (JSON) that each generation was shown, by path. A generation that was
        shown the task's schemas has no entry. Generations of one conversation share one text."""
        self.drafts: dict[str, Drafted] = {}
        """Unfinished generations by path, each with all of its durable tokens in one record."""
        self.calls: dict[tuple[bytes, int], Called] = {}
        """The calls of a black-box agent, by key and occurrence."""
        self.calls_ever = 0
        """The number of all calls, including tool calls and calls in history."""
        self.refusals: dict[tuple[int, bytes], CallRefused] = {}
        """The unanswered calls of a black-box agent, over all attempts."""
        self.worlds: dict[str, EpisodeLog] = {}
        """The actions in each environment, by the path of its opening."""
        self.close_failures: list[Failure] = []
        self.interruptions: Counter[str] = Counter()
        """The number of attempts that ended without a recorded failure while a tool call or a call
        of an environment ran, by path. For an environment that was being brought back, the key is
        the path of its opening. A later success resets the count."""
        self.furthest = 0
        """The largest number of steps that the trajectory has had at one time since its present
        life began."""
        self.unfinished: set[str] = set()
        """Tool calls that began and have no recorded end: neither a result nor a failed attempt. In
        a journal, the process died during these calls."""
        self._begun: set[str] = set()
        self._entered: set[str] = set()
        self._failed = False
        self.attempts: list[AttemptStarted] = []
        self.inherited: frozenset[str] = frozenset()
        """The steps that existed when the last attempt began."""
        self.failures: list[Failure] = []
        self.scoring_failures: list[Failure] = []
        self.forks: list[Forked] = []
        self.life = 0
        self.spent = 0
        """The number of failed attempts since the last refill or reopening."""
        self.rewinds = 0
        """The number of times that an environment came back different since the last generation."""
        self.finished: Finished | None = None
        self.scored: Scored | None = None
        self.used: UsageByModel = {}
        """The usage of everything that was ever sampled, by model. It includes history, generations
        outside the data, and judges."""
        self.reused = ""
        """The run that recorded the trajectory's beginning, if it was another run; "" otherwise."""
        self.shared: frozenset[str] = frozenset()
        """The steps that a fork shares with the trajectory that it comes from. No cut removes
        them."""
        self.edits: dict[str, Edited] = {}
        """The edited turns, by `Edited.turn`."""
        self.records = 0
        for record in records:
            self.take(record)
        if not settled:
            self.scored = None

    def take(self, record: Record) -> None:
        """Adds one record to the history."""
        self.records += 1
        if isinstance(record, AttemptStarted):
            self._start(record)
        elif type(record) in _STEPS:
            self._step(record)
            self.furthest = max(self.furthest, len(self.steps))
        elif isinstance(record, Edited):
            self.edits[record.turn] = record
        else:
            self._turn(record)

    def after(self, records: Iterable[Record]) -> "History":
        """Returns a copy of the history with these records added. This history does not change."""
        later = History.__new__(History)
        for name, value in vars(self).items():
            later.__dict__[name] = value.copy() if isinstance(value, _CONTAINERS) else value
        for record in records:
            later.take(record)
        return later

    def _start(self, record: AttemptStarted) -> None:
        self.attempts.append(record)
        self.inherited = frozenset(self.steps)
        if not self._failed and len(self.attempts) > 1:
            self.interruptions.update(self._begun & self.unfinished | self._entered)
        self._failed = False
        self._begun.clear()
        self._entered.clear()

    def _step(self, record: Record) -> None:
        match record:
            case Generated():
                used = record.billed
                if record.drafted:  # A draft was counted when it became durable.
                    used += Usage(completion_tokens=-record.drafted)
                self._use(record.model, used)
                self.steps[record.path] = joined(record, self.drafts.pop(record.path, None))
                self._show_tools(record)
                self.rewinds = 0
            case Drafted():
                self._use(record.model, Usage(completion_tokens=count(record.ids)))
                self.drafts[record.path] = longer(self.drafts.get(record.path), record)
            case ToolIntent():
                # A repeated call is still the same call.
                self.calls_ever += record.path not in self.steps
                self.steps[record.path] = record
                self.unfinished.add(record.path)
                self._begun.add(record.path)
            case ValueRecorded():
                self.steps[record.path] = record
            case EnvironmentStepped():
                self.steps[record.path] = record
                self._acted(record.environment, record.path)
            case ToolResult():
                self.results[record.path] = record
                self.unfinished.discard(record.path)
                del self.interruptions[record.path]
                intent = self.steps.get(record.path)
                if isinstance(intent, ToolIntent) and intent.environment:
                    self._acted(intent.environment, record.path)

    def _show_tools(self, record: Generated) -> None:
        shown = self.shown_tools.get(record.base) if record.tools is None else record.tools
        if shown is None:
            self.shown_tools.pop(record.path, None)  # The generation is history now.
        else:
            self.shown_tools[record.path] = shown

    def _use(self, model: str, usage: Usage) -> None:
        self.used[model] = self.used.get(model, NOTHING) + usage

    @property
    def deaths(self) -> int:
        """Returns the number of interruptions of the unfinished call that was interrupted most
        often."""
        return max(self.interruptions.values(), default=0)

    @property
    def is_answered(self) -> bool:
        """Returns whether every call that began has a recorded answer. Then nothing is under way in
        an environment that outlived its process."""
        intents = (path for path, step in self.steps.items() if isinstance(step, ToolIntent))
        begun = self._entered or any(self.interruptions.values())
        return not begun and all(path in self.results for path in intents)

    def _forgive(self) -> None:
        """Resets the budgets, so that earlier failures and interruptions no longer count."""
        self.spent = self.rewinds = 0
        self.interruptions.clear()

    def _acted(self, environment: str, path: str) -> None:
        self._entered.discard(path)
        del self.interruptions[path]
        if path == environment:
            self.worlds[path] = EpisodeLog()
        elif environment in self.worlds:
            self.worlds[environment].actions.append(path)
            del self.interruptions[environment]  # The environment was restored and continued.

    def _turn(self, record: Record) -> None:
        match record:
            case AttemptFailed():
                self.failures.append(record.failure)
                self.spent += 1
                self._failed = True
                self.end_calls()
            case Forked():
                self.forks.append(record)
                self.rewinds += record.reason == CAME_BACK_DIFFERENT
                self._entered.clear()
                self.cut(record.path)
                if record.path == "0":
                    # The trajectory begins again, as if nothing had been sampled.
                    self.calls_ever = 0
            case Refilled():
                self.life = record.life
                self._forgive()
                self.cut("0")
                self.furthest = 0
            case Snapshotted() if record.environment in self.worlds:
                world = self.worlds[record.environment]
                world.snapshots.append((record.applied, record.snapshot))
                world.last_step = next(reversed(self.steps), "")
            case CloseFailed():
                self.close_failures.append(record.failure)
            case Entered():
                (self._entered.discard if record.left else self._entered.add)(record.path)
            case Called():
                self.calls_ever += not record.received
                self.calls[record.key, record.occurrence] = record
            case CallRefused():
                self.refusals[record.attempt, record.key] = record
            case _:
                self._end(record)

    def _end(self, record: Record) -> None:
        match record:
            case Finished():
                self.finished = record
                self._leave_out(record.unseen)
            case Scored():
                self.scored = record
                for model, usage in judge_usage(record.details).items():
                    self._use(model, usage)
            case Reused():
                self.used = {}
                if record.fork:
                    self.shared = frozenset(self.steps)
                else:
                    self.reused = record.run
            case ScoringFailed():
                self.scoring_failures.append(record.failure)
                if record.final and self.finished is not None:
                    self.finished = structs.replace(
                        self.finished, status=Status.FAILED, reason="scoring failed", at=record.at
                    )
            case Reopened():
                self._forgive()
                self.finished = self.scored = None
                if self.failures and self.failures[-1].type == InterruptedCall.__name__:
                    self._cut_interrupted()

    def end_calls(self) -> None:
        """Marks the current attempt's calls as ended. Call it when an attempt ends and its process
        lives on."""
        self.unfinished -= self._begun

    def _cut_interrupted(self) -> None:
        """Makes interrupted calls history, so that they are made again, as the user asked."""
        for path in [path for path, result in self.results.items() if result.interrupted]:
            self.cut(path)

    def _leave_out(self, paths: Collection[str]) -> None:
        """Removes generations, and the calls that they answered, from the rollout."""
        for path in paths:
            self.steps.pop(path, None)
        for key, called in list(self.calls.items() if paths else ()):
            if called.path in paths:
                del self.calls[key]

    def cut(self, path: str) -> None:
        """Makes the steps at and after `path` history, as a fork record does."""

        def is_cut(step: str) -> bool:
            return is_cut_by(step, path) and step not in self.shared

        for gone in [step for step in self.steps if is_cut(step)]:
            del self.steps[gone]
            self.results.pop(gone, None)
            self.unfinished.discard(gone)
        for gone in [draft for draft in self.drafts if is_cut(draft)]:
            del self.drafts[gone]
        for key, called in list(self.calls.items()):
            if is_cut(called.path):
                del self.calls[key]
        for environment, world in list(self.worlds.items()):
            if is_cut(environment):
                # Actions in it from other scopes no longer belong to an episode.
                for action in self.worlds.pop(environment).actions:
                    self.steps.pop(action, None)
                    self.results.pop(action, None)
            else:
                world.cut(is_cut)

    @property
    def status(self) -> Status:
        if self.finished is not None:
            return self.finished.status
        return Status.RUNNING if self.attempts else Status.PENDING

    @property
    def reward(self) -> float | None:
        """Returns the scorer's reward, or without a score the rollout's own reward. Returns None if
        the trajectory is not settled or is not an outcome (I5)."""
        if not self._settled or not self.status.is_outcome or self.finished is None:
            return None
        return self.scored.reward if self.scored else self.finished.reward

    def sampled_by(self, versions: Collection[str]) -> bool:
        """Returns whether one of these weight versions sampled a token of the present state."""
        parts: list[Generated | Drafted] = [*self.generations, *self.drafts.values()]
        return any(span.version in versions for part in parts for span in part.versions)

    @property
    def generations(self) -> list[Generated]:
        return [step for step in self.in_order if isinstance(step, Generated)]

    @property
    def in_order(self) -> list[Step]:
        """Returns the steps ordered by path rather than by commit, so that the order is the same in
        a disturbed and an undisturbed run."""
        return [self.steps[path] for path in sorted(self.steps, key=path_order)]

    def reward_at(self, step: Step) -> float:
        """Returns the reward that an environment gave for the step; 0.0 without a reward."""
        if isinstance(step, EnvironmentStepped):
            return step.reward
        result = self.results.get(step.path) if isinstance(step, ToolIntent) else None
        return (result.reward or 0.0) if result is not None else 0.0

    @property
    def sampled_tokens(self) -> int:
        return sum(step.counted.completion_tokens for step in self.generations)

    @property
    def uncounted_turns(self) -> int:
        """Returns the number of turns whose engine reports neither tokens nor their number."""
        return sum(not (step.ids or step.usage or step.trainable) for step in self.generations)

    @property
    def interrupted_calls(self) -> list[str]:
        """Returns the names of the tools whose calls gave the model the result "interrupted"."""
        paths = (self.steps[path] for path, result in self.results.items() if result.interrupted)
        return [step.name for step in paths if isinstance(step, ToolIntent)]

    @property
    def unanswered_calls(self) -> list[CallRefused]:
        """Returns the refused calls of the last attempt that the agent did not repeat with
        success."""
        last = len(self.attempts)
        refusals = (call for call in self.refusals.values() if call.attempt == last)
        return [call for call in refusals if not call.answer]

    @property
    def seams(self) -> int:
        """Returns how often a reply continued after an interruption instead of being sampled
        again."""
        return sum(len(step.seams) for step in self.generations)

    @property
    def environment_steps(self) -> list[EnvironmentStepped]:
        """Returns the actions that `step` took in environments, without openings."""
        return [
            step
            for step in self.in_order
            if isinstance(step, EnvironmentStepped) and not step.is_opening
        ]

    @property
    def step_rewards(self) -> list[float]:
        """Returns the reward of each action and of each tool call with a reward, in order."""
        earned: list[float] = []
        for step in self.in_order:
            if isinstance(step, EnvironmentStepped) and not step.is_opening:
                earned.append(step.reward)
            elif isinstance(step, ToolIntent) and (result := self.results.get(step.path)):
                earned += [] if result.reward is None else [result.reward]
        return earned

    @property
    def prefix_breaks(self) -> int:
        return sum(bool(step.prefix_break) for step in self.generations)


def longer(draft: Drafted | None, more: Drafted) -> Drafted:
    """Returns a draft extended by the tokens of `more`. If the prompts differ, or `more` starts at
    0, returns `more`."""
    if draft is None or draft.fingerprint != more.fingerprint or not more.start:
        return more
    kept = 4 * more.start
    return Drafted(
        more.path,
        more.fingerprint,
        0,
        draft.ids[:kept] + more.ids,
        draft.logprobs[:kept] + more.logprobs,
        more.versions,
        more.model,
        more.call or draft.call,
        more.occurrence or draft.occurrence,
        more.created or draft.created,
        more.logprobs_mode,
    )


def joined(step: Generated, draft: Drafted | None) -> Generated:
    """Returns a generation with all of its tokens, from all records that contain them."""
    if not step.drafted or draft is None:
        return step
    kept = 4 * step.drafted
    return structs.replace(
        step,
        ids=draft.ids[:kept] + step.ids,
        logprobs=draft.logprobs[:kept] + step.logprobs,
        drafted=0,
    )


class Turn(Struct, frozen=True):
    """A generation with the messages that led to it."""

    step: Generated
    prompt: tuple[Message, ...]


def stream_of(history: History, path: str) -> "array[int]":
    """Returns the prompt and completion ids of the generation at `path`."""
    chain: list[Generated] = []
    while path:
        step = history.steps[path]
        assert isinstance(step, Generated), "a base is always a generation"
        chain.append(step)
        path = step.base
    ids: array[int] = array("i")
    for step in reversed(chain):
        del ids[step.keep :]
        ids.extend(unpack_ids(step.delta))
        ids.extend(unpack_ids(step.ids))
    return ids


def turns(history: History, task: Task) -> list[Turn]:
    """Returns the generations in order of their paths, each with the messages that it added."""
    return [Turn(step, added_messages(history, task, step)) for step in history.generations]


def added_messages(history: History, task: Task, step: Generated) -> tuple[Message, ...]:
    return tuple(
        resolve(history, task, item) if isinstance(item, str) else item for item in step.added
    )


def resolve(history: History, task: Task, reference: str) -> Message:
    """Returns a message that is recorded elsewhere. References are `task:2`, `tool:5`, `reply:4`,
    `env:6`, or `added:3:1`, the second message that generation 3 added."""
    kind, _, where = reference.partition(":")
    if kind == "added":
        path, _, index = where.partition(":")
        earlier = history.steps[path]
        assert isinstance(earlier, Generated), "messages are added by generations"
        added = earlier.added[int(index)]
        return resolve(history, task, added) if isinstance(added, str) else added
    if kind == "task":
        return task.messages[int(where)]
    if kind == "env":
        seen = history.steps[where]
        if isinstance(seen, EnvironmentStepped):
            return user(seen.observation)
        return user(history.results[where].content)
    if kind == "reply":
        step = history.steps[where]
        assert isinstance(step, Generated), "a reply is always a generation's"
        return step.message
    return tool_message(history, where)


def tool_message(history: History, path: str) -> Message:
    intent, result = history.steps[path], history.results[path]
    assert isinstance(intent, ToolIntent), "a tool message always has its intent"
    return Message(Role.TOOL, result.content, tool_call_id=intent.call_id or None, name=intent.name)
