"""The loop of a training: what it says where it cannot go on leads somewhere."""

import asyncio
from types import SimpleNamespace

import pytest

pytest.importorskip("torch", reason="the extra `train`")

from holdfast.journal.sqlite.journal import MemoryJournal
from holdfast.records.errors import Cause, NotTrainable
from holdfast.training.run.batches import NothingValid
from holdfast.training.run.loop import NothingTrainable, ServedWeights, TrainingLoop
from holdfast.training.run.metrics import TrainingMetrics
from holdfast.training.run.progress import TrainingProgress
from holdfast.training.run.weights import WeightFolder
from holdfast.training.settings import TrainingSettings
from support.records import consuming, spec

TRAIN_ON = (
    r"start a new training from its model .*--model \S+/step-1 --learning-rate 1e-06, another --run"
)


class Unusable:
    """A source of batches that has none."""

    def __init__(self, error):
        self.error = error

    async def of_step(self, step, roll_out):
        raise self.error

    async def close(self):
        pass


class Incomplete(Unusable):
    """One whose batches have to be rolled out, and then cannot be."""

    async def of_step(self, step, roll_out):
        await roll_out()
        raise self.error


async def nothing_to_note(step):
    raise AssertionError(f"step {step} is not trained")


async def loop_over(batches, tmp_path, *, trained_before=0, lines):
    journal = MemoryJournal()
    run = await journal.create_run(spec(), (), sealed=False)
    version = WeightFolder("step-1", tmp_path / "step-1", "digest")
    return TrainingLoop(
        SimpleNamespace(version=version, trainer=SimpleNamespace(step_number=1)),
        batches,
        TrainingSettings(),
        journal=journal,
        consumer=await consuming(journal, run),
        trained_before=trained_before,
        on_trained_again=nothing_to_note,
        held_out=None,
        metrics=TrainingMetrics(tmp_path, report=print),
        progress=TrainingProgress(),
        report=lines.append,
    )


def ended(tmp_path, error, *, done):
    """How a training ends whose batches are a failure after `done` steps."""

    async def work():
        loop = await loop_over(Unusable(error), tmp_path, lines=[])
        loop.use(ServedWeights(None, None, None))
        await loop.work(done)

    with pytest.raises(type(error)) as caught:
        asyncio.run(work())
    return caught


def test_rollouts_that_cannot_be_trained_are_said_to_stay_so(tmp_path):
    first = ended(tmp_path, NotTrainable("top_p 0.5"), done=0)
    assert first.type is NothingTrainable
    first.match("top_p 0.5; what is recorded so is never trained, .*`holdfast rm run` and the same")
    later = ended(tmp_path, NotTrainable("top_p 0.5"), done=1)
    assert later.type is NotTrainable
    later.match(f"top_p 0.5; what is recorded so is never trained, .*{TRAIN_ON}")


@pytest.mark.parametrize(
    ("by", "done", "message"),
    [
        (Cause.CODE, 0, "failed; once the reason is gone, add --retry-failed$"),
        (Cause.INFRASTRUCTURE, 1, "failed; once the reason is gone, add --retry-failed$"),
        (None, 1, "failed; once the reason is gone, add --retry-failed$"),
        (Cause.CODE, 1, f"does not go on with other code: correct it, and {TRAIN_ON}"),
    ],
)
def test_to_try_again_is_advised_where_it_can_help(tmp_path, by, done, message):
    ended(tmp_path, NothingValid("failed", by=by), done=done).match(message)


@pytest.mark.parametrize(
    ("source", "trained_before", "is_wanted", "lines"),
    [
        pytest.param(Unusable, 1, True, 0, id="nothing was trained later"),
        pytest.param(Unusable, 2, False, 0, id="a step is trained again"),
        pytest.param(Incomplete, 2, True, 1, id="a step cannot be trained again without rollouts"),
    ],
)
async def test_engines_are_wanted_when_what_was_trained_before_is_trained_again(
    tmp_path, source, trained_before, is_wanted, lines
):
    reported = []
    batches = source(NothingValid("failed"))
    loop = await loop_over(batches, tmp_path, trained_before=trained_before, lines=reported)
    working = asyncio.create_task(loop.work(1))
    await asyncio.wait({working, loop.wants_engines}, return_when=asyncio.FIRST_COMPLETED)
    assert loop.wants_engines.done() == is_wanted
    assert working.done() == (not is_wanted), "it waits for the engines"
    loop.use(ServedWeights(None, None, None))
    with pytest.raises(NothingValid):
        await working
    assert len(reported) == lines
