"""The loop of a training: what it says where it cannot go on leads somewhere."""

import asyncio
from types import SimpleNamespace

import pytest

pytest.importorskip("torch", reason="the extra `train`")

from holdfast.journal.memory import MemoryJournal
from holdfast.records.errors import Cause, NotTrainable
from holdfast.training.run.batches import NothingValid
from holdfast.training.run.loop import NothingTrainable, TrainingLoop
from holdfast.training.run.metrics import TrainingMetrics
from holdfast.training.run.progress import TrainingProgress
from holdfast.training.run.weights import WeightFolder
from holdfast.training.settings import TrainingSettings
from support.records import consuming, spec

TRAIN_ON = r"train on from its model .*--model \S+/step-1 --learning-rate 1e-06, another --run"


class Unusable:
    """A source of batches that has none."""

    def __init__(self, error):
        self.error = error

    async def of_step(self, step):
        raise self.error

    async def close(self):
        pass


def ended(tmp_path, error, *, done):
    """How a training ends whose batches are a failure after `done` steps."""

    async def work():
        journal = MemoryJournal()
        run = await journal.create_run(spec(), (), sealed=False)
        loop = TrainingLoop(
            SimpleNamespace(version=WeightFolder("step-1", tmp_path / "step-1", "digest")),
            Unusable(error),
            TrainingSettings(),
            journal=journal,
            consumer=await consuming(journal, run),
            publish=None,
            evaluate=None,
            metrics=TrainingMetrics(tmp_path, report=print),
            progress=TrainingProgress(),
            report=print,
        )
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
    ("by", "done", "said"),
    [
        (Cause.CODE, 0, "failed; once the reason is gone, add --retry-failed$"),
        (Cause.INFRASTRUCTURE, 1, "failed; once the reason is gone, add --retry-failed$"),
        (None, 1, "failed; once the reason is gone, add --retry-failed$"),
        (Cause.CODE, 1, f"does not go on with other code: correct it, and {TRAIN_ON}"),
    ],
)
def test_to_try_again_is_advised_where_it_can_help(tmp_path, by, done, said):
    ended(tmp_path, NothingValid("failed", by=by), done=done).match(said)
