"""`holdfast.trl.async_rollouts` under a stand-in of `AsyncGRPOTrainer`: rows while it trains, each
group in one checkpoint, and a resume that gives exactly the rest."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

import holdfast
from holdfast.policy.rendering.renderer import ByteRenderer
from holdfast.records.errors import UsageError

ROWS = [
    {"messages": [{"role": "user", "content": f"{n} + {n}?"}], "ground_truth": str(2 * n)}
    for n in range(4)
]


@pytest.fixture(autouse=True)
def bytes_are_rendered(stand_in: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fake engine reads bytes."""
    from holdfast.trl import session

    monkeypatch.setattr(session, "renderer_for", lambda folder: ByteRenderer())


async def solve(t: holdfast.Rollout) -> None:
    t.add(*t.task.messages)
    await t.generate()


def score(trajectory: holdfast.TrajectoryView) -> float:
    return float(trajectory.key.sample)


@pytest.fixture
def made(tmp_path, engine) -> Iterator[Any]:
    """Makes trainers over one journal; ends their rollouts."""
    trainers = []

    def make(*, saved: Any = None, **args: Any):
        import holdfast.trl
        from support.trl.async_trainer import AsyncTrainer

        parts = holdfast.trl.async_rollouts(
            solve, score, journal=tmp_path / "holdfast.db", rows=ROWS, policy=engine.url
        )
        trainers.append(AsyncTrainer(tmp_path, parts, saved=saved, **args))
        return trainers[-1]

    yield make
    for trainer in trainers:
        trainer.end()


def ledger(folder) -> dict[int, tuple[str, int | None]]:
    async def read() -> dict[int, tuple[str, int | None]]:
        journal = holdfast.open_journal(folder / "holdfast.db", read_only=True)
        try:
            entries = await journal.ledger(await journal.find_run("trl"), "trainer")
            return {entry.ordinal: (str(entry.end), entry.step) for entry in entries}
        finally:
            await journal.close()

    return asyncio.run(read())


def test_a_row_is_as_trl_takes_it(made):
    trainer = made()
    trainer.begin()
    rows = trainer.take()
    assert {row.group_id for row in rows} == {rows[0].group_id}
    assert sorted(row.advantage for row in rows) == pytest.approx([-0.7071, 0.7071], abs=1e-3)
    for row in rows:
        assert row.model_version == 1, "TRL counts how often it has sent weights"
        assert len(row.input_ids) == len(row.completion_mask) == len(row.old_log_probs)
    trainer.parts.worker.check_health(60.0)


def test_a_checkpoint_commits_the_groups_that_it_has_trained_and_no_others(made, tmp_path):
    trainer = made()
    trainer.begin()
    first, second = trainer.take(), trainer.take()
    trainer.train(first)
    trainer.save()
    assert ledger(tmp_path)[first[0].group_id] == ("trained", 1)
    assert ledger(tmp_path)[second[0].group_id][0] == "open", "it was taken, and not trained"


def test_a_resumed_training_gets_the_rest_of_a_group_that_was_trained_in_part(made, tmp_path):
    trainer = made()
    trainer.begin()
    first, other = trainer.take()
    trainer.train([first])
    saved = trainer.save()
    trainer.end()
    resumed = made(saved=saved)
    resumed.begin()
    row = resumed.parts.worker.rollout_buffer.get(timeout=60)
    assert (row.group_id, list(row.input_ids)) == (other.group_id, list(other.input_ids))
    assert row.advantage == other.advantage, "its group is still two"
    resumed.train([row])
    resumed.save()
    assert ledger(tmp_path)[row.group_id] == ("trained", 2)
    assert resumed.take()[0].group_id != row.group_id


def test_what_trl_leaves_out_is_dismissed_with_the_reason(made, tmp_path):
    trainer = made()
    trainer.begin()
    left_out, trained = trainer.take(), trainer.take()
    trainer.train(trained)
    trainer.save()
    assert ledger(tmp_path)[left_out[0].group_id][0] == "dismissed"
    assert ledger(tmp_path)[trained[0].group_id] == ("trained", 1)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"world_size": 2}, "this trainer has 2"),
        ({"restore_callback_states_from_checkpoint": True}, "would make the callback anew"),
    ],
)
def test_a_trainer_that_would_train_wrongly_is_refused(made, args, message):
    with pytest.raises(UsageError, match=message):
        made(**args)


def test_parts_that_were_not_all_given_to_the_trainer_are_named(made):
    trainer = made()
    with pytest.raises(UsageError, match="give AsyncGRPOTrainer all three parts"):
        trainer.parts.weight_transfer.init_weight_transfer()
    with pytest.raises(UsageError, match="no weights were sent to the engines"):
        trainer.parts.worker.start()
