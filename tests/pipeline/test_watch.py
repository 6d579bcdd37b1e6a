"""A pipeline is watched from its journal and from what its parts say; watching changes nothing."""

import pytest

from holdfast.journal.sqlite.journal import MemoryJournal
from holdfast.pipeline.batches import PacedBatches
from holdfast.pipeline.settings import PipelineSettings
from holdfast.pipeline.status import StatusFile, families, read_status, watched_page
from holdfast.prometheus import render
from holdfast.records.epochs import EpochStream
from holdfast.records.errors import UsageError
from holdfast.training.settings import TrainingSettings
from support.records import consuming, make_tasks, ready, settle


async def test_the_page_has_queues_versions_and_what_the_parts_say(tmp_path):
    journal = MemoryJournal()
    run, _, claims = await ready(journal, *"abcd")
    consumer = await consuming(journal, run)
    for claim in claims[:3]:
        await settle(journal, claim)
    await journal.publish_version(run, "step-0", step=0, digest="d")
    await journal.next_batch(consumer, 1, groups=1)
    trainer = StatusFile(tmp_path / "pipeline" / "trainer.json")
    trainer.update({"step": 1, "steps": 9, "lag_oldest": 2}, doing="training")
    rollouter = StatusFile(tmp_path / "pipeline" / "rollouter.json")
    rollouter.update({"running": 2}, doing="rolling out")
    text = "\n".join(await watched_page(journal, "run", folder=tmp_path))
    assert "4 groups, 0 trained, stream sealed" in text
    assert "1 rolling out, 2 ready, 1 taken" in text
    assert "1, the newest step-0" in text
    assert "step 1 of 9" in text
    assert "to 2 (oldest)" in text
    assert "2 running" in text
    bare = await watched_page(journal, "run", folder=None)
    assert not any("running" in line for line in bare)
    with pytest.raises(UsageError, match="no run 'other'"):
        await watched_page(journal, "other", folder=None)


async def test_a_training_that_is_over_says_so(tmp_path):
    journal = MemoryJournal()
    run, _, claims = await ready(journal, *"ab")
    consumer = await consuming(journal, run)
    for claim in claims:
        await settle(journal, claim)
    with pytest.raises(UsageError, match="run 'run' is not a training"):
        await watched_page(journal, "run", folder=None)
    await journal.publish_version(run, "step-0", step=0, digest="d")
    await journal.next_batch(consumer, 1, groups=2)
    assert "over" not in (await watched_page(journal, "run", folder=None))[0]
    await journal.commit(consumer, 1)
    (first, *_) = await watched_page(journal, "run", folder=None)
    assert first == "training run: over, 2 groups, 2 trained, stream sealed"


async def test_the_gauges_at_the_end_are_those_of_the_journal(tmp_path):
    journal = MemoryJournal()
    run, _, claims = await ready(journal, *"abcd")
    consumer = await consuming(journal, run)
    for claim in claims:
        await settle(journal, claim)
    status = StatusFile(tmp_path / "pipeline" / "trainer.json")
    batches = PacedBatches(
        journal,
        consumer,
        EpochStream(make_tasks(*"abcd"), seed=0),
        training=TrainingSettings.of(groups=2, samples=2, steps=2),
        pipeline=PipelineSettings(max_staleness=0),
        tasks=4,
        status=status,
    )
    await journal.next_batch(consumer, 1, groups=2)
    await batches.pool.open()
    status.update({"groups_open": 4, "groups_ready": 4}, doing="training")
    await journal.commit(consumer, 1)
    await batches.close()
    (part,) = read_status(tmp_path / "pipeline")
    stats = await batches.pool.stats()
    assert part.numbers["groups_open"] == stats.open == 2
    assert part.numbers["groups_ready"] == stats.ready == 2


def test_each_number_is_a_metric(tmp_path):
    StatusFile(tmp_path / "trainer.json").update(
        {"lag_oldest": 2, "idle_seconds_total": 1.5}, doing="training"
    )
    result = families(read_status(tmp_path), {"trainer": 3, "rollouter": 0})
    text = render([("", result)], prefix="holdfast_pipeline_")
    assert "# TYPE holdfast_pipeline_trainer_lag_oldest gauge\n" in text
    assert "holdfast_pipeline_trainer_lag_oldest 2\n" in text
    assert "# TYPE holdfast_pipeline_trainer_idle_seconds_total counter\n" in text
    assert 'holdfast_pipeline_restarts_total{part="trainer"} 3\n' in text
