"""Only what is new is sampled: the next run of a series reuses what an older one has sampled."""

import asyncio
import itertools
import random
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.engine.running.result import RunResult
from holdfast.journal.damage.check import check
from holdfast.journal.process import this_process
from holdfast.policy.rendering.renderer import ByteRenderer
from holdfast.records.run import Run
from holdfast.records.task import Task, as_tasks
from support.rollout.stage import Oracle

EDITS = 40
Row = dict[str, object]


class Counting(Oracle):
    """Every reply is another one."""

    def __init__(self) -> None:
        numbers = itertools.count()
        super().__init__(lambda request: f"reply {next(numbers)}")


def asking(hint: int) -> Any:
    async def ask(t: holdfast.Rollout) -> None:
        t.add(f"hint {hint}", *t.task.messages)
        await t.generate()

    return ask


def judged(weight: int) -> Any:
    def score(trajectory: holdfast.TrajectoryView) -> float:
        return value_of(weight, trajectory.task, trajectory.messages[-1].text)

    return score


def value_of(weight: int, task: Task, reply: str) -> float:
    truth = task.ground_truth
    assert isinstance(truth, int)
    return float(weight * truth + int(reply.rpartition(" ")[2]) / 1000)


class Attempts:
    """A user who runs one file again and again, in one journal."""

    def __init__(self, folder: Path):
        self.journal = folder / "runs.db"
        self.policy = Counting()
        self.rows: list[Row] = [row(n) for n in range(4)]
        self.hint = self.weight = 0
        self.samples = 2
        self.sampling: dict[str, object] = {"temperature": 1.0}
        self.seed: int | None = None

    def run(self, *, scorer: bool = True, **options: object) -> RunResult:
        return holdfast.run_sync(
            asking(self.hint), tasks=self.rows, policy=self.policy, renderer=ByteRenderer(),
            journal=self.journal, samples=self.samples, sampling=self.sampling, seed=self.seed,
            scorer=judged(self.weight) if scorer else None, **options,
        )  # fmt: skip

    def sampled(self, **options: object) -> int:
        """How many trajectories are sampled by the next command."""
        before = len(self.policy.requests)
        self.run(**options)
        return len(self.policy.requests) - before


def row(number: int) -> Row:
    return {"id": f"t{number}", "prompt": f"What is {number}?", "ground_truth": number}


@pytest.fixture
def user(tmp_path: Path) -> Attempts:
    return Attempts(tmp_path)


def test_rows_that_are_removed_or_reordered_sample_nothing(user: Attempts) -> None:
    assert user.sampled() == 8
    assert user.sampled() == 0
    user.rows = user.rows[:0:-1]
    assert user.sampled() == 0
    assert user.run().report.reused == {"ask-1": 6}


def test_more_rows_and_more_samples_sample_what_is_new(user: Attempts) -> None:
    user.run()
    user.rows.insert(1, row(9))
    assert user.sampled() == 2
    user.samples = 3
    assert user.sampled() == 5
    assert user.run().report.reused == {"ask-1": 8, "ask-2": 2}


def test_rows_without_ids_are_known_by_what_is_asked(user: Attempts) -> None:
    user.rows = [{"prompt": text, "ground_truth": 1} for text in ("a", "b", "b")]
    assert user.sampled() == 6
    user.rows = [{"prompt": text, "ground_truth": 2} for text in ("c", "b", "b", "a")]
    assert user.sampled() == 2


def test_a_corrected_ground_truth_is_scored_anew_alone(user: Attempts) -> None:
    first = user.run()
    user.rows[0] |= {"ground_truth": 50}
    assert user.sampled() == 0
    second = user.run()
    assert second.rewards[2:] == first.rewards[2:]
    assert [new - old for new, old in zip(second.rewards, first.rewards, strict=True)][:2] == [0, 0]
    user.weight = 1
    assert [round(reward) for reward in user.run().rewards[:2]] == [50, 50]


def test_a_scorer_that_failed_is_mended_without_sampling(user: Attempts) -> None:
    def run(divisor: int) -> RunResult:
        def score(trajectory: holdfast.TrajectoryView) -> float:
            return 1 / divisor

        return holdfast.run_sync(
            asking(0), tasks=user.rows, policy=user.policy, renderer=ByteRenderer(),
            journal=user.journal, scorer=score, settings={"scoring": {"tries": 1}},
        )  # fmt: skip

    assert run(0).failed == 4
    count = len(user.policy.requests)
    assert run(2).rewards == [0.5] * 4
    assert len(user.policy.requests) == count


def test_no_engine_is_asked_where_all_is_reused(user: Attempts) -> None:
    user.run()

    class Down(Counting):
        async def check(self) -> None:
            raise AssertionError("it was asked")

    user.policy = Down()
    user.rows = user.rows[::-1]
    assert user.run().report.reused == {"ask-1": 8}


def test_a_ground_truth_without_a_scorer_may_be_the_rollouts(user: Attempts) -> None:
    assert user.sampled(scorer=False) == 8
    user.rows[0] |= {"ground_truth": 50}
    assert user.sampled(scorer=False) == 2


@pytest.mark.parametrize(
    ("name", "value"),
    [("hint", 1), ("seed", 3), ("sampling", {"temperature": 0.5}), ("rows", [{**row(0), "x": 1}])],
)
def test_other_code_settings_or_columns_sample_anew(
    user: Attempts, name: str, value: object
) -> None:
    user.rows = [row(0)]
    user.run()
    setattr(user, name, value)
    assert user.sampled() == 2


def test_what_is_wanted_fresh_is_sampled_anew_and_reused_later(user: Attempts) -> None:
    user.run()
    assert user.sampled(new=True) == 8
    user.rows.append(row(9))
    assert user.sampled() == 2
    assert user.run().report.reused == {"ask-2": 8}


def test_a_run_with_a_name_reuses_nothing(user: Attempts) -> None:
    user.run()
    assert user.sampled(name="other") == 8


def test_what_is_reused_is_not_paid_for_again(user: Attempts) -> None:
    user.run()
    user.samples = 3
    used = user.run().report.usage["oracle"]
    assert used["completion_tokens"] == sum(len(f"reply {n}") + 1 for n in range(8, 12))


def test_a_group_keeps_its_relative_scores_only_if_all_of_it_is_reused(user: Attempts) -> None:
    calls: list[int] = []

    def score(trajectories: list[holdfast.TrajectoryView]) -> list[float]:
        calls.append(len(trajectories))
        return [float(each.key.sample) for each in trajectories]

    def run() -> list[int]:
        calls.clear()
        holdfast.run_sync(
            asking(0), tasks=user.rows[:2], policy=user.policy, renderer=ByteRenderer(),
            journal=user.journal, samples=user.samples, scorer=holdfast.group_scorer(score),
        )  # fmt: skip
        return calls

    assert run() == [2, 2]
    user.rows = user.rows[::-1]
    user.rows = [user.rows[-1], row(7)]
    assert run() == [2], "the group that is there keeps its scores"
    user.samples = 3
    assert run() == [3, 3], "with more samples, all are judged together"
    assert len(user.policy.requests) == 8


async def test_the_run_that_was_reused_may_be_deleted(user: Attempts) -> None:
    first = user.run()
    user.rows.pop()
    expected = first.rewards[:6]
    user.run()
    async with holdfast.open_journal(user.journal) as journal:
        run = await journal.find_run("ask-1")
        assert run is not None
        await journal.delete_run(run)
    assert user.run().rewards == expected
    assert not check(user.journal).findings


# --- random edits against a model of what must be sampled

Key = tuple[object, ...]


class Model:
    """What each run has, in the order in which the runs began."""

    def __init__(self) -> None:
        self.runs: dict[str, dict[Key, str]] = {}

    def expected(self, wanted: list[Key]) -> dict[Key, str]:
        """What the next run takes over: from the newest run that has it."""
        fields: dict[Key, str] = {}
        for replies in reversed(self.runs.values()):
            fields = {key: replies[key] for key in wanted if key in replies} | fields
        return fields


def keys_of(user: Attempts) -> list[Key]:
    settings = (user.hint, user.sampling["temperature"], user.seed)
    return [
        (*settings, task.id, task.messages[0].text, sample)
        for task in as_tasks(user.rows)
        for sample in range(user.samples)
    ]


def edit(  # noqa: C901 - one case each
    user: Attempts, chance: random.Random, number: int
) -> dict[str, object]:
    """One random change; the options of the next call."""
    rows, at = user.rows, chance.randrange(len(user.rows))
    match chance.randrange(11):
        case 0 if len(rows) > 1:
            del rows[at]
        case 1:
            rows.insert(at, row(100 + number))
        case 2:
            rows.insert(at, {"prompt": f"unnamed {chance.randrange(3)}", "ground_truth": 1})
        case 3:
            chance.shuffle(rows)
        case 4:
            rows[at] = {**rows[at], "ground_truth": number}
        case 5:
            rows[at] = {**rows[at], "prompt": f"asked anew {number}"}
        case 6:
            user.samples = chance.randint(1, 4)
        case 7:
            user.sampling = {"temperature": chance.choice([0.5, 1.0])}
        case 8:
            user.seed = chance.choice([None, 1])
        case 9:
            user.hint, user.weight = chance.randrange(2), chance.randrange(2)
        case 10:
            return {"new": chance.random() < 0.3}
    return {}


def test_random_edits_sample_exactly_what_no_run_has(user: Attempts) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance, model = random.Random(seed), Model()
    for number in range(EDITS):
        options = edit(user, chance, number)
        wanted, before = keys_of(user), len(user.policy.requests)
        result = user.run(**options)
        sampled = len(user.policy.requests) - before
        views = {(view.key.task, view.key.sample): view for view in result.trajectories}
        got = {key: views[key[-3], key[-1]].messages[-1].text for key in wanted}
        name = result.report.run
        if name in model.runs:
            assert (sampled, got) == (0, model.runs[name])
        else:
            reused = {} if options.get("new") else model.expected(wanted)
            assert sampled == len(wanted) - len(reused)
            assert {key: got[key] for key in reused} == reused
        model.runs[name] = got
        for view in views.values():
            text = view.messages[-1].text
            assert view.reward == value_of(user.weight, view.task, text), "no stale score"
    assert not check(user.journal).findings


def test_runs_that_share_trajectories_have_one_consumer(user: Attempts) -> None:
    """What one of them has delivered, the other never delivers."""
    user.run()
    user.rows.append(row(9))
    user.run()
    user.hint = 1
    user.run()

    async def deliver(name: str) -> int:
        async with holdfast.open_journal(user.journal) as journal:
            run: Run | None = await journal.find_run(name)
            assert run is not None
            me = this_process()
            consumer = await journal.subscribe(run, "loop", me, lease_seconds=30)
            return len((await journal.next_batch(consumer, 1, groups=4)).groups)

    assert asyncio.run(deliver("ask-2")) == 4
    with pytest.raises(
        holdfast.UsageError, match=r"shares trajectories with 'ask-2'.*delivered tw"
    ):
        asyncio.run(deliver("ask-1"))
    assert asyncio.run(deliver("ask-3")) == 4, "other code shares nothing"
    user.hint = 0
    user.rows.append(row(10))
    assert user.sampled() == 12, "what a trainer may have is sampled anew"
    assert asyncio.run(deliver("ask-4")) == 4
    user.rows = user.rows[::-1]
    assert user.sampled() == 12, "although one run has all of it, an engine is asked"
