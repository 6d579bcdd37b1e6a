"""What a token counts in its step is what the trainer computes."""

import pytest

from holdfast.records.history import History
from holdfast.training.batch import load_group, sequences_of
from holdfast.training.settings import TrainingRecord, TrainingSettings
from holdfast.view.reading.gradient import pushes, reply_at, weigh
from support.training import batches_of, rolled_out


async def test_advantages_and_weights_are_the_trainers():
    settings = TrainingSettings.of(groups=2)
    async with rolled_out(lambda task: [0.0, 1.0, 1.0], samples=3) as (journal, consumer, rows):
        batches = batches_of(journal, consumer, rows, groups=2)
        await journal.publish_version(consumer.run, "v1", step=0, digest="d")
        await batches.of_step(1)
        await journal.commit(consumer, 1)
        run = await journal.annotate_run(
            consumer.run, training=TrainingRecord(settings.identity).text
        )
        weighing = await weigh(journal, run, [0, 1])
        members = [await journal.trajectories(run, ordinals=[ordinal]) for ordinal in (0, 1)]
        groups = [await load_group(journal, group) for group in members]
        expected = sequences_of(groups, settings.trainer.objective)
        plain = [(s.advantages, s.weight, s.engine_logprobs) for s in weighing.sequences]
        assert plain == [(s.advantages, s.weight, s.engine_logprobs) for s in expected]
        assert len(plain) == 6
        for key, sample in weighing.samples():
            [row] = [r for group in members for r in group if str(r.key) == key]
            history = History(await journal.history(row.id))
            for place, logprob, advantage, push in pushes(weighing.sequence(sample)):
                path, at = reply_at(history, sample, place)
                assert (path, sample.token_ids[place]) == ("0", (3, 4, 5)[at])
                assert push == pytest.approx(advantage / 18 * (1 - 2.718281828**logprob))


async def test_a_run_without_a_training_weighs_nothing():
    async with rolled_out(lambda task: [0.0, 1.0]) as (journal, consumer, _):
        assert await weigh(journal, consumer.run, [0]) is None
        other = TrainingRecord({"trainer": {"objective": 3}})
        run = await journal.annotate_run(consumer.run, training=other.text)
        assert await weigh(journal, run, [0]) is None
