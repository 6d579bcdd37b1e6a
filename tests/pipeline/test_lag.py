"""How old a sample is, by the versions of its tokens."""

from holdfast.journal.sqlite.journal import MemoryJournal
from holdfast.pipeline.batches import Lag, PublishedVersions, widest
from holdfast.records.samples.sample import Sample
from holdfast.records.step import VersionSource, VersionSpan
from holdfast.training.batch import TrainedTrajectory, TrainingGroup
from support.records import spec


def group(*spans: VersionSpan) -> TrainingGroup:
    sample = Sample(
        "a", "a", 0, 0, "COMPLETED", "", [1, 2, 3], [1, 1, 1], [-1.0] * 3, list(spans), 1.0
    )
    return TrainingGroup("a", (TrainedTrajectory("a/0", 1.0, (sample,)),))


async def test_the_newest_and_the_oldest_token_are_told_apart():
    journal = MemoryJournal()
    run = await journal.create_run(spec(), ())
    for step in range(4):
        await journal.publish_version(run, f"step-{step}", step=step, digest=str(step))
    await journal.publish_version(run, "step-3.2", step=3, digest="other")
    versions = PublishedVersions(journal, run)
    now = await versions.in_force(3)
    assert now is not None
    assert now.name == "step-3.2"
    assert await versions.in_force(9) is None
    mixed = group(VersionSpan("step-1", 0, 2), VersionSpan("step-3", 2, 3))
    assert versions.lag(mixed, now) == Lag(0, 2), "step-3.2 is no step newer than step-3"
    assert versions.lag(group(VersionSpan("step-3.2", 0, 3)), now) == Lag(0, 0)
    assert versions.lag(group(VersionSpan("unpublished", 0, 3)), now) is None
    unknown = VersionSpan("", 0, 3, VersionSource.UNKNOWN)
    assert versions.lag(group(unknown), now) is None
    assert versions.lag(group(), now) is None


def test_a_batch_is_as_old_as_its_oldest():
    assert widest([Lag(1, 2), None, Lag(0, 1)]) == Lag(0, 2)
    assert widest([None]) is None
