"""A sample is the training view of a trajectory, or of one branch of it.

Generations form a tree: each generation continues the stream of its base, or breaks off from it.
Every path from the root to a leaf is one sample. A sampled token is trained in the first sample
that contains it and masked in all other samples, so that each token is trained once (I3).
"""

import math
from array import array
from collections.abc import Sequence

from msgspec import Struct

from holdfast.records.encoding.bounds import MAX_FLOAT32
from holdfast.records.encoding.tokens import unpack_ids, unpack_logprobs
from holdfast.records.errors import NotTrainable
from holdfast.records.history import History
from holdfast.records.samples.experts import RoutedExperts, kept_before
from holdfast.records.samples.logprobs import MAX_LOGPROB, LogprobsMode, mode_with, worst
from holdfast.records.step import Generated, VersionSpan
from holdfast.records.trajectory import Status
from holdfast.records.usage import NOTHING


class TurnSpan(Struct, frozen=True, array_like=True, gc=False):
    """Tokens `start` to `end` (exclusive) of a sample were sampled in one turn."""

    start: int
    end: int
    temperature: float
    top_p: float
    trained: bool
    """Whether the tokens are trained in this sample."""
    is_cut: bool = False
    """Whether the tokens were sampled from another distribution than the model's own at this
    temperature, because sampling parameters changed the distribution (`Sampling.altered_by`)."""


class StepReward(Struct, frozen=True, array_like=True, gc=False):
    """A reward that an environment gave before token `place` of a sample."""

    place: int
    reward: float


class Sample(Struct, omit_defaults=False):
    """The data that a trainer reads.

    `loss_mask` and `logprobs` are as long as `token_ids`. Lengths, spans and numbers are checked,
    so that no inconsistent sample can be created. Only the placeholder of an aborted trajectory,
    which no loss uses, has another shape.
    """

    task: str
    group: str
    sample: int
    branch: int
    status: str
    reason: str
    token_ids: list[int]
    loss_mask: list[int]
    logprobs: list[float]
    version_spans: list[VersionSpan]
    reward: float | None
    advantage: float | None = None
    remove_sample: bool = False
    logprobs_mode: LogprobsMode = LogprobsMode.UNKNOWN
    """The mode of the trained tokens' logprobs. If modes are mixed, the worst one."""
    trajectory: str = ""
    """The name that all branches of the trajectory share: task/sample."""
    turns: list[TurnSpan] = []
    """The spans of the sampled turns, with their sampling parameters."""
    step_rewards: list[StepReward] = []
    """The rewards of environments during the trajectory. `reward` is the reward of the whole
    trajectory."""
    truncated: bool = False
    """Whether the trajectory reached a limit."""
    prompt_tokens: int = 0
    """The number of prompt tokens of the turns that are new in this sample, with each prompt
    counted in full."""
    completion_tokens: int = 0
    """The number of tokens that were sampled in these turns."""
    interrupted: bool = False
    """Whether the model was told that a tool call was interrupted (`GroupPolicy.keep_interrupted`
    keeps such a trajectory)."""

    def __post_init__(self) -> None:
        if not self.remove_sample and (problem := _inconsistency(self)):
            raise ValueError(f"task {self.task!r}, sample {self.sample}: {problem}")


def _inconsistency(sample: Sample) -> str:
    """Describes what is inconsistent in the sample; "" if it is consistent."""
    length = len(sample.token_ids)
    if not length == len(sample.loss_mask) == len(sample.logprobs):
        return (
            f"{length} token ids, {len(sample.loss_mask)} in the loss mask, "
            f"{len(sample.logprobs)} logprobs"
        )
    if not set(sample.loss_mask) <= {0, 1}:
        return "the loss mask has other values than 0 and 1"
    if problem := _wrong_logprobs(sample.logprobs):
        return problem
    if sample.reward is not None and not math.isfinite(sample.reward):
        return f"the reward {sample.reward} is not finite"
    spans = [(span.start, span.end) for span in sample.version_spans]
    spans += [(turn.start, turn.end) for turn in sample.turns]
    if any(not 0 <= start <= end <= length for start, end in spans):
        return f"a span lies outside the {length} tokens"
    return ""


def _wrong_logprobs(logprobs: Sequence[float]) -> str:
    if not logprobs:
        return ""
    if not math.isfinite(sum(logprobs)):
        return "a logprob is not finite"
    if max(logprobs) > MAX_LOGPROB:
        return f"a logprob is positive ({max(logprobs)})"
    if min(logprobs) < -MAX_FLOAT32:
        return f"a logprob does not fit float32 ({min(logprobs)})"
    return ""


class _Branch:
    """A branch under construction: the tokens from the root to a leaf of the tree of
    generations."""

    def __init__(self) -> None:
        self.ids: array[int] = array("i")
        self.mask: array[int] = array("b")
        self.logprobs: array[float] = array("f")
        self.spans: list[VersionSpan] = []
        self.modes: set[LogprobsMode] = set()
        """The logprob modes of the tokens that this branch trains."""
        self.turns: list[TurnSpan] = []
        self.step_rewards: list[StepReward] = []
        self.used = NOTHING
        """The usage of the turns that are new in this branch."""
        self.experts: list[RoutedExperts] = []

    def fork(self, keep: int) -> "_Branch":
        """Returns a new branch that begins with the first `keep` tokens of this branch. The new
        branch masks these tokens, so that only this branch trains them."""
        other = _Branch()
        other.ids, other.logprobs = self.ids[:keep], self.logprobs[:keep]
        other.mask = array("b", bytes(keep))
        other.spans = [
            VersionSpan(span.version, span.start, min(span.end, keep), span.source)
            for span in self.spans
            if span.start < keep
        ]
        other.turns = [
            TurnSpan(
                turn.start, min(turn.end, keep), turn.temperature, turn.top_p, False, turn.is_cut
            )
            for turn in self.turns
            if turn.start < keep
        ]
        other.experts = kept_before(self.experts, keep)
        return other

    def extend(self, step: Generated, *, is_shared: bool) -> None:
        """Adds a turn. A shared turn is masked, because it belongs to another trajectory."""
        trained = step.trainable and not is_shared
        prompt = unpack_ids(step.delta)
        self.ids.extend(prompt)
        self.mask.extend(bytes(len(prompt)))
        self.logprobs.frombytes(bytes(4 * len(prompt)))
        start = len(self.ids)
        completion = unpack_ids(step.ids)
        self.ids.extend(completion)
        self.mask.extend((b"\x01" if trained else b"\x00") * len(completion))
        self.logprobs.extend(unpack_logprobs(step.logprobs))
        if trained:
            self.modes.add(mode_with(step.logprobs_mode, step.sampling))
        self.spans += [
            VersionSpan(span.version, start + span.start, start + span.end, span.source)
            for span in step.versions
        ]
        self.used += NOTHING if is_shared else step.counted
        if step.experts is not None:
            self.experts.append(step.experts)
        how = step.sampling
        is_cut = bool(how.altered_by)
        self.turns.append(
            TurnSpan(start, len(self.ids), how.temperature, how.top_p, trained, is_cut)
        )

    def earn(self, reward: float) -> None:
        self.step_rewards.append(StepReward(len(self.ids), reward))


def samples_of(
    history: History, *, task: str, group: str, sample: int, trains_shared: bool = False
) -> list[Sample]:
    """Returns the samples of an outcome, in the order of their first generation. Returns [] if the
    trajectory is not an outcome (I5). Raises `NotTrainable` if the engine returned no token ids.

    Tokens that a fork shares with its original are masked, unless `trains_shared`."""
    if not history.status.is_outcome or history.finished is None:
        return []
    if not has_tokens(history):
        raise NotTrainable(
            f"task {task!r}, sample {sample}: its engine gave messages without token ids (chat): "
            "there is nothing to train on; export trajectories, or sample from an engine that "
            "`holdfast policy check URL` finds fit for training"
        )
    reason = history.finished.reason
    samples = [
        Sample(
            task=task,
            group=group,
            sample=sample,
            branch=index,
            status=history.status.name,
            reason=reason,
            token_ids=branch.ids.tolist(),
            loss_mask=branch.mask.tolist(),
            logprobs=branch.logprobs.tolist(),
            version_spans=branch.spans,
            reward=history.reward,
            logprobs_mode=worst(branch.modes),
            trajectory=f"{task}/{sample}",
            turns=branch.turns,
            step_rewards=branch.step_rewards,
            truncated=history.status is Status.TRUNCATED,
            prompt_tokens=branch.used.prompt_tokens,
            completion_tokens=branch.used.completion_tokens,
            interrupted=bool(history.interrupted_calls),
        )
        for index, branch in enumerate(_branches(history, trains_shared=trains_shared))
    ]
    # A conversation without trained tokens, such as a simulated user's, gives no sample.
    return [sample for sample in samples if any(sample.loss_mask)] or samples


def experts_of(history: History) -> list[list[RoutedExperts]]:
    """Returns the routed experts of each branch. If two entries cover the same token, the later
    entry counts."""
    return [branch.experts for branch in _branches(history, trains_shared=False)]


def has_tokens(history: History) -> bool:
    """Returns whether the trajectory has token ids that can be trained. If the policy's replies
    have token ids, replies without token ids count as part of the environment, such as the replies
    of a simulated user behind a chat API."""
    generations = history.generations
    return all(step.ids for step in generations) or any(
        step.ids and step.trainable for step in generations
    )


def _branches(history: History, *, trains_shared: bool) -> list[_Branch]:
    shared = frozenset() if trains_shared else history.shared
    open_at: dict[str, tuple[_Branch, int]] = {}
    branches: list[_Branch] = []
    branch: _Branch | None = None
    for step in history.in_order:
        if not isinstance(step, Generated):
            if branch is not None and (reward := history.reward_at(step)):
                branch.earn(reward)
            continue
        if not step.ids:
            continue
        open_branch = open_at.get(step.base) if step.base else None
        if open_branch is None:
            branch = _Branch()
            branches.append(branch)
        else:
            branch, length = open_branch
            if step.keep < length or length < len(branch.ids):
                branch = branch.fork(step.keep)
                branches.append(branch)
        branch.extend(step, is_shared=step.path in shared)
        open_at[step.path] = (branch, len(branch.ids))
    return branches


def with_tokens(history: History) -> list[Generated]:
    return [step for step in history.generations if step.ids]


def placeholder(*, task: str, group: str, sample: int) -> Sample:
    """Returns an ABORTED sample, which keeps a group's shape for a consumer that needs a fixed n.
    No loss uses it."""
    return Sample(
        task=task,
        group=group,
        sample=sample,
        branch=0,
        status=Status.ABORTED.name,
        reason="",
        token_ids=[0, 0],
        loss_mask=[0],
        logprobs=[0.0],
        version_spans=[],
        reward=0.0,
        remove_sample=True,
        logprobs_mode=worst(()),
    )
