"""Random groups of samples: trees of turns, tools, branches, truncations, failures, versions."""

import random
from itertools import pairwise

from hypothesis import strategies as st

from holdfast.records.history import History
from holdfast.records.samples.sample import Sample, TurnSpan, placeholder, samples_of
from holdfast.records.step import EnvironmentStepped, Finished, Generated, Record, VersionSpan
from holdfast.records.trajectory import Status
from support.records import generated, started

REWARDS = (0.0, 1.0, 0.25, -1.5, 0.1)


@st.composite
def groups(draw: st.DrawFn, *, size: int = 4, branches: bool = True) -> list[Sample]:
    """The samples of some tasks; members that failed have none."""
    samples: list[Sample] = []
    for task in range(draw(st.integers(1, 3))):
        for member in range(size):
            outcome = draw(st.sampled_from(["valid", "valid", "valid", "truncated", "failed"]))
            if outcome == "failed":
                continue
            steps = draw(trajectories(branches=branches))
            status = Status.TRUNCATED if outcome == "truncated" else Status.COMPLETED
            reward = draw(st.sampled_from((*REWARDS, None)))
            reason = "max_turns" if outcome == "truncated" else "returned"
            history = History([started(), *steps, Finished(status, reason, reward, 2.0)])
            name = f"task-{task}"
            samples += samples_of(history, task=name, group=name, sample=member)
    return samples


@st.composite
def trajectories(draw: st.DrawFn, *, branches: bool = True) -> list[Record]:
    """Turns with tools or an environment between them; some break the prefix, and some tokens were
    sampled by other weights."""
    steps: list[Record] = []
    turns: list[tuple[str, int]] = []
    path = 0
    for number in range(draw(st.integers(1, 5))):
        base, keep = ("", 0)
        if turns:
            base, length = draw(st.sampled_from(turns)) if branches else turns[-1]
            whole = not branches or draw(st.booleans())
            keep = length if whole else draw(st.integers(1, length))
        delta = draw(st.lists(st.integers(0, 99), min_size=1, max_size=3))
        step = _turn(draw, str(path), number, base=base, keep=keep, delta=delta)
        steps.append(step)
        size = len(step.ids) // 4
        turns.append((str(path), keep + len(delta) + size))
        path += 1
        if draw(st.booleans()):
            reward = draw(st.sampled_from([0.0, 0.5, 0.25]))
            steps.append(stepped(str(path), reward))
            path += 1
    return steps


def _turn(
    draw: st.DrawFn, path: str, number: int, *, base: str, keep: int, delta: list[int]
) -> Generated:
    size = draw(st.integers(1, 4))
    ids = draw(st.lists(st.integers(100, 999), min_size=size, max_size=size))
    cut = draw(st.integers(0, size))
    edges = [0, cut, size] if 0 < cut < size else [0, size]
    return generated(
        path,
        base=base,
        keep=keep,
        delta=delta,
        ids=ids,
        logprobs=[-token / 8 for token in ids],
        versions=tuple(
            VersionSpan(f"step-{number + part}", start, end)
            for part, (start, end) in enumerate(pairwise(edges))
        ),
    )


def stepped(path: str, reward: float) -> EnvironmentStepped:
    return EnvironmentStepped(path, b"e", "act", "seen", reward, False, environment="world")


def sample(
    task: str = "a",
    number: int = 0,
    *,
    prompt: int = 3,
    reply: int = 4,
    reward: float | None = 1.0,
    branch: int = 0,
    temperature: float = 1.0,
    seed: int = 0,
) -> Sample:
    """One turn on a prompt."""
    chance = random.Random(f"{task}/{number}/{branch}/{seed}")
    ids = [chance.randrange(3, 1000) for _ in range(prompt + reply)]
    return Sample(
        task=task,
        group=task,
        sample=number,
        branch=branch,
        status="COMPLETED",
        reason="",
        token_ids=ids,
        loss_mask=[0] * prompt + [1] * reply,
        logprobs=[0.0] * prompt + [-0.5] * reply,
        version_spans=[VersionSpan("step-1", prompt, prompt + reply)],
        reward=reward,
        trajectory=f"{task}/{number}",
        turns=[TurnSpan(prompt, prompt + reply, temperature, 1.0, True)],
    )


def aborted(task: str = "a", number: int = 3) -> Sample:
    return placeholder(task=task, group=task, sample=number)
