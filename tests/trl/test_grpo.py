"""`holdfast.trl.rollouts` under a stand-in of `GRPOTrainer`: which rows a step gets, what a
checkpoint commits, and what is refused before anything is trained wrongly."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

import holdfast
from holdfast.policy.rendering.renderer import ByteRenderer
from holdfast.records.errors import UsageError


async def solve(t: holdfast.Rollout) -> None:
    t.add(*t.task.messages)
    await t.generate()
    t.add(holdfast.user("sure?"))
    await t.generate()


async def fails_once(t: holdfast.Rollout) -> None:
    await solve(t)
    if t.key.sample == 1:
        raise ValueError("a bug")


def score(trajectory: holdfast.TrajectoryView) -> float:
    assert trajectory.task.ground_truth is not None
    return float(trajectory.key.sample)


@pytest.fixture
def started(tmp_path, engine, monkeypatch) -> Iterator[Any]:
    """Makes trainers over one journal; ends their rollouts."""
    from holdfast.trl import session

    # The fake engine reads bytes.
    monkeypatch.setattr(session, "renderer_for", lambda folder: ByteRenderer())
    made = []

    def start(*, rollout: Any = solve, resume: int = 0, trainer: Any = None, **options: Any):
        import holdfast.trl
        from support.trl.trainer import Trainer

        arguments = {"journal": tmp_path / "holdfast.db", "policy": engine.url, **options}
        rollouts = holdfast.trl.rollouts(rollout, options.pop("scorer", score), **arguments)
        more = {"reward_funcs": [holdfast.trl.reward], **(trainer or {})}
        made.append(rollouts)
        return Trainer(tmp_path, rollouts, resume=resume, **more)

    engine.reset()
    yield start
    for rollouts in made:
        rollouts.close()


def ledger(folder) -> list[tuple[str, int | None]]:
    async def read() -> list[tuple[str, int | None]]:
        journal = holdfast.open_journal(folder / "holdfast.db", read_only=True)
        try:
            entries = await journal.ledger(await journal.find_run("trl"), "trainer")
            return [(str(entry.end), entry.step) for entry in entries]
        finally:
            await journal.close()

    return asyncio.run(read())


def test_a_step_has_the_columns_that_trl_trains_on(started):
    from holdfast.trl import reward

    columns = started().step()
    assert reward(**columns) == [0.0, 1.0], "the members of the group, in their order"
    for completion, logprobs, mask in zip(
        columns["completion_ids"], columns["logprobs"], columns["env_mask"], strict=True
    ):
        assert len(completion) == len(logprobs) == len(mask)
        assert set(mask) == {0, 1}, "the second prompt is not trained"
    assert columns["prompt_ids"][0] == columns["prompt_ids"][1]


def test_a_checkpoint_commits_what_it_has_trained(started, tmp_path):
    trainer = started()
    trainer.step()
    trainer.save()
    trainer.step()
    assert ledger(tmp_path) == [("trained", 1), ("open", 2)]
    trainer.end()
    assert ledger(tmp_path) == [("trained", 1), ("open", 2)], "no checkpoint holds the second"


def test_a_resumed_training_is_answered_from_the_journal(started, tmp_path, engine):
    first = started()
    first.step()
    first.save()
    rows = first.step()
    first.rollout_func.close()
    requests = engine.stats().requests
    resumed = started(resume=1)
    assert resumed.step() == rows
    assert engine.stats().requests == requests, "nothing was sampled again"
    resumed.save()
    assert ledger(tmp_path) == [("trained", 1), ("trained", 2)]


def test_a_training_that_begins_does_not_get_the_samples_of_another(started, tmp_path):
    first = started()
    first.step()
    first.save()
    first.rollout_func.close()
    with pytest.raises(UsageError, match="trained up to step 1, and the trainer begins anew"):
        started().step()
    assert ledger(tmp_path) == [("trained", 1)]


def test_a_step_that_other_weights_sampled_is_refused_or_accepted_by_name(started):
    first = started()
    rows = first.step()
    first.rollout_func.close()
    other = started()
    other._update()
    other.state.global_step = 0
    with pytest.raises(UsageError, match="was sampled with other weights"):
        other.step()
    accepting = started(other_weights="accept")
    accepting._update()
    accepting.state.global_step = 0
    assert accepting.step() == rows


def test_a_member_that_failed_is_a_row_without_a_reward_and_without_a_loss(started):
    columns = started(rollout=fails_once, settings=holdfast.Settings(backoff=0.0)).step()
    assert columns["holdfast_reward"] == [0.0, None]
    assert columns["env_mask"][1] == [0]


def test_an_evaluation_is_a_run_that_nobody_trains_on(started, tmp_path):
    trainer = started()
    trainer.step()
    columns = trainer.evaluate()
    assert columns["holdfast_reward"] == [0.0, 1.0]
    assert ledger(tmp_path) == [("open", 1)]


def form(completions: list[Any], **columns: Any) -> list[float]:
    return [0.5] * len(completions)


@pytest.mark.parametrize(
    ("trainer", "message"),
    [
        ({"reward_funcs": [form]}, "not form: TRL would give a reward to rollouts that fail"),
        ({"reward_funcs": []}, "not nothing"),
        ({"tools": [form]}, "the trainer has tools or environments of its own"),
        ({"accelerator": SimpleNamespace(num_processes=2)}, "this trainer has 2"),
        ({"train_dataset": iter(())}, "the data set is a stream"),
    ],
)
def test_a_trainer_that_would_train_wrongly_is_refused(started, tmp_path, trainer, message):
    it = started(trainer=trainer)
    with pytest.raises(UsageError, match=message):
        it.rollout_func([[{"role": "user", "content": "0 + 0?"}]] * 2, it)
    assert not (tmp_path / "holdfast.db").exists(), "nothing was sampled"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"policy": 5}, "policy is of type int"),
        ({"branches": "zzz"}, "branches is one of refuse, longest, not 'zzz'"),
        ({"other_weights": 1}, "other_weights is one of refuse, accept, not 1"),
        ({"journal": None}, "journal is the path of a file"),
    ],
)
def test_options_that_make_no_sense_are_named(started, options, message):
    with pytest.raises(UsageError, match=message):
        started(**options)


@dataclass
class Arguments:
    """TRL's `GRPOConfig`, with what it declares beside transformers' own."""

    temperature: float = 1.0
    top_p: float = 1.0
    generation_kwargs: Any = None
    max_tool_calling_iterations: int | None = None
    of_a_later_trl: int = 3


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"generation_kwargs": {"min_tokens": 3}}, "generation_kwargs.*TRL's own engine samples"),
        ({"max_tool_calling_iterations": 3}, "the rollout decides on turns and tools"),
    ],
)
def test_arguments_of_trl_that_cannot_be_followed_are_refused(arguments, why):
    from holdfast.trl.arguments import check_arguments

    check_arguments(Arguments(temperature=0.5))
    with pytest.raises(UsageError, match=why):
        check_arguments(Arguments(**arguments))


def test_an_argument_of_trl_that_no_table_has_is_named():
    from holdfast.trl.arguments import check_arguments

    with pytest.warns(UserWarning, match="TRL, and leaves them to it: of_a_later_trl;"):
        check_arguments(Arguments(of_a_later_trl=4))


def test_a_training_that_is_sampled_from_a_part_of_the_tokens_is_refused_at_once(started, engine):
    trainer = started()
    trainer.args.top_p = 0.9
    with pytest.raises(UsageError, match=r"sampled with top_p 0\.9, from a distribution"):
        trainer.step()
    assert engine.stats().requests == 0
