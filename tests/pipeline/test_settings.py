"""What makes no sense is refused in one line, before anything is begun."""

import pytest
from msgspec import structs

from holdfast.pipeline.settings import (
    PipelineSettings,
    RestartPolicy,
    adapted,
    check_pipeline,
    corrected,
)
from holdfast.records.errors import UsageError
from holdfast.training.objective.objective import ICEPOP, MIS, objective_named
from holdfast.training.settings import TrainingSettings


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"max_staleness": -1}, "max_staleness"),
        ({"max_staleness": 0.5}, "max_staleness"),
        ({"straggler_seconds": -1}, "straggler_seconds"),
        ({"epochs": 0}, "epochs"),
        ({"too_old": "drop"}, "none of train, dismiss"),
    ],
)
def test_bad_settings_are_refused(options, line):
    with pytest.raises(UsageError, match=line):
        PipelineSettings(**options)


def test_a_staleness_that_the_data_cannot_fill_is_refused():
    training = TrainingSettings.of(groups=4, steps=3)
    check_pipeline(PipelineSettings(max_staleness=2), training, tasks=8)
    with pytest.raises(UsageError, match=r"the whole training has 12: give at most 2"):
        check_pipeline(PipelineSettings(max_staleness=3), training, tasks=8)
    with pytest.raises(UsageError, match="has 8: give at most 1"):
        check_pipeline(PipelineSettings(max_staleness=2, epochs=1), training, tasks=8)


def test_a_loss_that_needs_fresh_samples_is_refused():
    training = TrainingSettings.of("rloo", groups=2, steps=10)
    check_pipeline(PipelineSettings(max_staleness=0), training, tasks=8)
    with pytest.raises(UsageError, match="needs fresh samples"):
        check_pipeline(PipelineSettings(max_staleness=1), training, tasks=8)
    masked = structs.replace(objective_named("rloo"), correction=MIS)
    training = TrainingSettings.of(objective=masked, groups=2, steps=10)
    check_pipeline(PipelineSettings(max_staleness=1), training, tasks=8)
    assert corrected(PipelineSettings(), training).trainer.objective.correction == MIS


@pytest.mark.parametrize(
    ("options", "seconds"),
    [({}, 30.0), ({"growth": 2}, 30.0), ({"growth": 1e300}, 30.0), ({"delay": 0.0}, 0.0)],
)
def test_however_many_crashes_a_wait_is_at_most_the_longest(options, seconds):
    assert RestartPolicy(restarts=10_000, **options).wait(5_000) == seconds


def test_a_staleness_that_nobody_chose_adapts_to_the_training():
    assert adapted(PipelineSettings(), TrainingSettings.of(steps=10), tasks=16).max_staleness == 1
    short = TrainingSettings.of(groups=4, steps=1)
    assert adapted(PipelineSettings(), short, tasks=8).max_staleness == 0
    one_epoch = PipelineSettings(epochs=1)
    assert adapted(one_epoch, TrainingSettings.of(groups=8, steps=9), tasks=8).max_staleness == 0
    fresh = TrainingSettings.of("rloo", groups=2, steps=10)
    assert adapted(PipelineSettings(), fresh, tasks=8).max_staleness == 0


def test_stale_samples_are_corrected_and_fresh_ones_are_left_alone():
    training = TrainingSettings.of(groups=2)
    assert corrected(PipelineSettings(max_staleness=0), training) == training
    settings = corrected(PipelineSettings(max_staleness=1), training)
    assert settings.trainer.objective.correction == ICEPOP


def test_restarts_wait_longer_each_time_and_end():
    policy = RestartPolicy(restarts=3, delay=1.0, growth=4.0, longest=10.0)
    assert [policy.wait(crashes) for crashes in range(1, 5)] == [1.0, 4.0, 10.0, None]
    with pytest.raises(UsageError, match="delay"):
        RestartPolicy(delay=-1)
    with pytest.raises(UsageError, match="restarts"):
        RestartPolicy(restarts=-1)
