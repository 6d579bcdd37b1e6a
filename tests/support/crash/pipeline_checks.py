"""What is asserted of a pipeline that something was killed of."""

from holdfast.journal.damage.check import check
from support.crash.pipeline import Pipeline


def assert_same(pipeline: Pipeline, undisturbed: Pipeline) -> None:
    assert pipeline.metrics() == undisturbed.metrics()
    assert pipeline.final() == undisturbed.final()
    assert pipeline.sampled() == undisturbed.sampled()
    assert pipeline.ledger() == undisturbed.ledger()
    pipeline.check_versions()
    assert_whole(pipeline)


def assert_whole(pipeline: Pipeline) -> None:
    """Every group is trained once, and every turn was sampled by a version that there was."""
    groups, versions = pipeline.ledger()
    assert {end for _, end, _, _ in groups} == {"trained"}
    names = {name for _, name, _, _ in versions}
    turns = [turn for turns in pipeline.turns().values() for turn in turns]
    assert {span.version for turn in turns for span in turn.versions} <= names
    assert check(pipeline.journal).findings == []
    assert pipeline.parts_left() == []
