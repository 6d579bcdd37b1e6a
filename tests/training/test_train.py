"""`holdfast.train`: what cannot be trained is said in one line, before anything is written."""

import asyncio
import shutil
import threading

import pytest
import torch
from msgspec import structs
from safetensors.torch import load_file, save_file

from holdfast.engine.open_run import RunChanged
from holdfast.journal.memory import MemoryJournal
from holdfast.records.errors import ConsumerHeld, HoldfastError, UsageError
from holdfast.records.sampling import Sampling
from holdfast.testing import FakeEngine
from holdfast.training.checkpoint import CheckpointDamaged
from holdfast.training.objective.objective import Cap, Clip, Kl, Objective
from holdfast.training.run import folder
from holdfast.training.run.folder import DiskTooSmall, FolderInUse, use_folder
from holdfast.training.run.loop import TrainingState, in_thread
from holdfast.training.run.train import TINY, train
from holdfast.training.run.weights import WeightFolder
from holdfast.training.settings import (
    Lora,
    OptimizerSettings,
    TrainerSettings,
    TrainingSettings,
)
from holdfast.training.trainer import Trainer
from support.records import someone_else

pytest.importorskip("peft", reason="the extra `train`")

TASKS = [{"id": "a", "prompt": "What is 1 + 2?"}, {"id": "b", "prompt": "What is 2 + 2?"}]
SMALL = TrainingSettings(groups=1, samples=2, trainer=TrainerSettings(steps=2))


async def solve(t):
    t.add(*t.task.messages)
    await t.generate(max_tokens=8)


def score(trajectory):
    return float(len(trajectory.reply) % 2)


def attempt(out, *, journal=None, settings=SMALL, **changes):
    """What `train` says; it has to be an error of ours, in one line."""
    given = {"tasks": TASKS, "name": "first", "scorer": score} | changes
    with pytest.raises(HoldfastError) as caught:
        asyncio.run(
            train(solve, journal=journal or MemoryJournal(), out=out, settings=settings, **given)
        )
    assert "\n" not in str(caught.value) or caught.type is RunChanged
    return caught


def lora(*targets):
    return structs.replace(SMALL, lora=Lora(targets=targets))


def with_kl(reference):
    objective = Objective(kl=Kl(0.1))
    trainer = structs.replace(SMALL.trainer, objective=objective)
    return structs.replace(SMALL, trainer=trainer, reference=reference)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"sampling": Sampling(top_p=0.9)}, "leave out top_p"),
        ({"sampling": Sampling(top_k=5)}, "leave out top_p, top_k"),
        ({"sampling": Sampling(temperature=0)}, "temperature above 0"),
        ({"tasks": []}, "at least one task"),
        ({"tasks": [*TASKS, {"id": "a@2", "prompt": "?"}]}, "rename it"),
        ({"model": "no/such/folder"}, "no/such/folder"),
        ({"settings": lora("nothing_proj")}, "no modules called nothing_proj"),
        ({"name": "a/b"}, "a/b"),
        ({"policy": ["http://127.0.0.1:9"]}, "127.0.0.1:9"),
    ],
)
def test_bad_input_is_said_before_anything_is_written(tmp_path, changes, words):
    journal = MemoryJournal()
    caught = attempt(tmp_path / "out", journal=journal, **changes)
    assert words in str(caught.value)
    assert asyncio.run(journal.runs()) == []
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: TrainingSettings(samples=1), "samples=1 with a baseline of the group"),
        (lambda: TrainingSettings(groups=0), "groups must be 1 or more"),
        (lambda: TrainingSettings(dtype="int8"), "int8"),
        (lambda: OptimizerSettings(learning_rate=3.0), "learning_rate=3.0"),
        (lambda: OptimizerSettings(learning_rate=float("nan")), "learning_rate"),
        (lambda: OptimizerSettings(max_norm=0.0), "max_norm"),
        (lambda: OptimizerSettings(schedule="square"), "square"),
        (lambda: TrainingSettings(reference=TINY), "KL coefficient is 0"),
        (lambda: Lora(rank=0), "rank=0"),
        (lambda: Clip(low=1.5), "clip low=1.5"),
        (lambda: Clip(high=-1.0), "clip high=-1.0"),
        (lambda: Cap(high=float("inf")), "cap high"),
    ],
)
def test_settings_that_make_no_sense_cannot_be_made(make, words):
    with pytest.raises(UsageError, match=words):
        make()


def test_an_engine_without_token_ids_is_refused(tmp_path):
    journal = MemoryJournal()
    with FakeEngine(dialect="chat") as engine:
        caught = attempt(tmp_path / "out", journal=journal, policy=[engine.url])
    assert "without token ids" in str(caught.value)
    assert asyncio.run(journal.runs()) == []


def test_logprobs_of_another_distribution_are_refused(tmp_path):
    journal = MemoryJournal()
    with FakeEngine(logprobs_mode="raw") as engine:
        caught = attempt(
            tmp_path / "out",
            journal=journal,
            policy=[engine.url],
            sampling=Sampling(temperature=0.8),
        )
    assert "raw" in str(caught.value)
    assert asyncio.run(journal.runs()) == []


def test_an_engine_that_takes_no_weights_and_a_run_that_another_trains(tmp_path):
    journal, out = MemoryJournal(), tmp_path / "out"
    with FakeEngine() as engine:
        attempt(out, journal=journal, policy=[engine.url]).match("did not take the weights step-0")
        changed = attempt(out, journal=journal, policy=[engine.url], tasks=TASKS[:1])
        assert changed.type is RunChanged

        async def hold():
            run = await journal.find_run("first")
            await journal.subscribe(run, "trainer", someone_else(), lease_seconds=600.0)

        asyncio.run(hold())
        before = sorted(path for path in out.rglob("*"))
        held = attempt(out, journal=journal, policy=[engine.url])
        assert held.type is ConsumerHeld
        assert sorted(path for path in out.rglob("*")) == before
        assert engine.stats().requests <= 50, "probes, and no rollouts"


# --- the folder


def test_a_folder_that_holds_something_else_is_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    assert "holds something else (thesis.tex)" in str(attempt(tmp_path).value)
    assert "is a file" in str(attempt(tmp_path / "thesis.tex").value)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_folder_is_used_by_one_process_at_a_time(tmp_path):
    with use_folder(tmp_path / "out"):
        with (
            pytest.raises(FolderInUse, match="another process trains in"),
            use_folder(tmp_path / "out"),
        ):
            pass
        (tmp_path / "out" / "metrics.jsonl").write_text("")
    with use_folder(tmp_path / "out"):
        pass
    assert (tmp_path / "out").exists()


def test_too_little_disk_for_the_first_checkpoint_is_said_first(tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(folder.shutil, "disk_usage", lambda path: usage._replace(free=1_000_000))
    assert attempt(tmp_path / "out").type is DiskTooSmall
    assert not (tmp_path / "out").exists()


# --- checkpoints of something else


@pytest.fixture
def saved(tmp_path):
    """A folder with the checkpoint of step 1 of the run `first`."""
    state = TrainingState(Trainer(TINY, SMALL.trainer), SMALL, folder=tmp_path / "out", run="first")
    state.version = WeightFolder("step-1", tmp_path, "digest")
    state.trainer.step_number = 1
    state.save()
    return tmp_path / "out"


def other_model(tmp_path):
    path = tmp_path / "other"
    shutil.copytree(TINY, path)
    tensors = load_file(path / "model.safetensors")
    name = min(tensors)
    save_file(tensors | {name: tensors[name] + 1}, path / "model.safetensors", {"format": "pt"})
    return path


def test_a_checkpoint_of_something_else_is_named(saved, tmp_path):
    assert "is of run 'first', not of 'second'" in str(attempt(saved, name="second").value)
    settings = structs.replace(SMALL, groups=2, seed=5)
    assert "other settings: groups, seed" in str(attempt(saved, settings=settings).value)
    model = other_model(tmp_path)
    assert "began from another model" in str(attempt(saved, model=model).value)
    assert "which this journal does not know" in str(attempt(saved).value)


def test_a_damaged_checkpoint_is_no_reason_to_begin_anew(saved):
    (file,) = saved.glob("checkpoints/*/weights.safetensors")
    file.write_bytes(file.read_bytes()[:-1])
    caught = attempt(saved)
    assert caught.type is CheckpointDamaged
    assert "weights.safetensors was altered" in str(caught.value)


def test_what_is_saved_or_evaluated_how_often_is_free(saved):
    other = structs.replace(SMALL, checkpoint_every=7, keep_checkpoints=1, eval_every=3)
    assert other.identity == SMALL.identity


# --- threads


def test_a_cancelled_caller_waits_for_its_thread_however_often_it_is_cancelled():
    begun, go_on, done = threading.Event(), threading.Event(), threading.Event()

    def work():
        begun.set()
        go_on.wait(30)
        done.set()

    async def body():
        task = asyncio.create_task(in_thread(work))
        await asyncio.to_thread(begun.wait)
        for _ in range(3):
            task.cancel()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        assert not task.done()
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert done.is_set()

    asyncio.run(body())


def test_the_reference_has_the_vocabulary_of_the_model(tmp_path):
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(TINY)
    model.resize_token_embeddings(model.config.vocab_size + 3)
    model.save_pretrained(tmp_path / "larger")
    caught = attempt(tmp_path / "out", settings=with_kl(tmp_path / "larger"))
    assert "vocabulary" in str(caught.value)


def test_updates_share_the_step_and_their_sum_is_its_loss():
    """More updates than groups: each group's share is scaled by what there is, not by the wish."""
    norms = {}
    for updates in (1, 7):
        torch.manual_seed(0)
        settings = structs.replace(SMALL.trainer, updates=updates)
        result = Trainer(TINY, settings).step([_group()])
        norms[updates] = result.numbers["gradient_norm"]
    assert norms[1] == norms[7] > 0


def _group():
    from holdfast.records.history import History
    from holdfast.records.samples.sample import samples_of
    from holdfast.training.batch import TrainedTrajectory, TrainingGroup
    from support.records import finished, generated, started

    members = []
    for number, ids in enumerate([(30, 40, 50), (60, 70, 80, 90)]):
        history = History([started(), generated("0", ids=ids), finished()])
        samples = samples_of(history, task="a", group="a", sample=number)
        members.append(TrainedTrajectory(f"a/{number}", float(number), tuple(samples)))
    return TrainingGroup("a", tuple(members))


def test_a_step_without_groups_changes_nothing():
    trainer = Trainer(TINY, SMALL.trainer)
    before = {name: tensor.clone() for name, tensor in trainer.optimizer.weights.items()}
    result = trainer.step([])
    assert (result.loss, result.tokens, trainer.step_number) == (0.0, 0, 1)
    assert all(torch.equal(t, before[n]) for n, t in trainer.optimizer.weights.items())
