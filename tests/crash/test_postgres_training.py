"""`holdfast train` with its journal on PostgreSQL: killed and continued, it ends with the bits that
an undisturbed training on a file ends with."""

import asyncio
from importlib.util import find_spec

import pytest

from holdfast.journal.damage.check_server import check_server
from support.crash.killable_run import SIGKILLED
from support.crash.pipeline import ROLLOUTER, SUPERVISOR, TRAINER, Pipeline, read_until
from support.crash.training import Training, Witness, check_frozen_trainer
from support.journal import postgres_server

pytestmark = [
    pytest.mark.skipif(not postgres_server.is_available(), reason="needs a PostgreSQL server"),
    pytest.mark.skipif(find_spec("peft") is None, reason="the extra `train`"),
    pytest.mark.timeout(600),
]
POINTS = ("engine.finished:3", "train.stepped:1", "checkpoint.renamed:1", "train.committed:1")
"""While a batch is rolled out, and on both sides of a step's commit, in steps 1 and 2."""


@pytest.fixture(scope="module")
def on_file(tmp_path_factory) -> Training:
    training = Training(tmp_path_factory.mktemp("file"))
    code, _, err = training.train()
    assert code == 0, err
    return training


@pytest.fixture
def url():
    url = postgres_server.new_database()
    yield url
    postgres_server.drop_database(url)


def assert_same(training: Training, other: Training) -> None:
    assert training.final() == other.final()
    assert training.sampled() == other.sampled()
    groups, versions = training.ledger()
    assert (sorted(groups), versions) == (sorted(other.ledger()[0]), other.ledger()[1])
    assert {end for _, end, _, _ in groups} == {"trained"}
    assert asyncio.run(check_server(str(training.journal))).findings == []


@pytest.mark.exhaustive
@pytest.mark.parametrize("points", [POINTS[1:2], POINTS], ids=["once", "again and again"])
def test_a_training_that_is_killed_and_continued_ends_as_one_on_a_file(
    on_file, url, tmp_path, points
):
    training = Training(tmp_path, journal=url)
    witness = Witness(training)
    for point in points:
        code, _, err = training.train(crash=point)
        assert code == SIGKILLED, f"{point}: {err}"
        witness.look()
    code, _, err = training.train()
    assert code == 0, err
    witness.look()
    assert training.metrics() == on_file.metrics()
    assert_same(training, on_file)


@pytest.mark.exhaustive
def test_a_pipeline_whose_parts_are_killed_ends_as_one_on_a_file(on_file, url, tmp_path):
    """`--async`, with a staleness of 0: rollouter, trainer and supervisor share the server."""
    pipeline = Pipeline(tmp_path, journal=url)
    process = pipeline.start()
    read_until(process, "step 0 ")
    assert pipeline.kill(ROLLOUTER, process)
    read_until(process, "step 1 ")
    assert pipeline.kill(TRAINER, process)
    read_until(process, "step 2 ")
    assert pipeline.kill(SUPERVISOR, process)
    process.communicate()
    assert pipeline.parts_left() == []
    code, _, err = pipeline.train()
    assert code == 0, err
    assert_same(pipeline, on_file)


@pytest.mark.exhaustive
def test_a_trainer_that_was_frozen_past_its_lease_trains_and_commits_nothing(url, tmp_path):
    check_frozen_trainer(Training(tmp_path, journal=url))
