"""`holdfast.train`: what cannot be trained is said in one line, before anything is written."""

import asyncio
import os
import re
import shutil
import threading
from functools import partial
from pathlib import Path

import pytest
import torch
from msgspec import structs
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from holdfast.embedded.model.files import TINY
from holdfast.engine.open_run import RunChanged, open_run
from holdfast.engine.scoring.scorer import Score
from holdfast.journal.sqlite.journal import MemoryJournal
from holdfast.records.errors import ConsumerHeld, HoldfastError, UsageError
from holdfast.records.sampling import Sampling
from holdfast.records.trajectory import Status
from holdfast.testing import FakeEngine
from holdfast.training import batch as training_batch
from holdfast.training.checkpoint import CheckpointDamaged
from holdfast.training.objective.losses import policy_loss
from holdfast.training.objective.objective import Cap, Clip, Kl, Objective
from holdfast.training.run import folder, gap
from holdfast.training.run.folder import (
    DiskFull,
    DiskTooSmall,
    FolderInUse,
    OtherTraining,
    name_full_disk,
    use_folder,
)
from holdfast.training.run.loop import Restored, TrainingState, in_thread
from holdfast.training.run.metrics import TrainingReport, is_empty, is_flat, read
from holdfast.training.run.open_training import open_training, rewind
from holdfast.training.run.train import train
from holdfast.training.run.weights import WeightFolder
from holdfast.training.settings import (
    Lora,
    OptimizerSettings,
    TrainerSettings,
    TrainingSettings,
)
from holdfast.training.trainer import Trainer
from holdfast.weights.engine_lock import EngineInUse, hold_engines
from holdfast.weights.probe import compared
from support.records import (
    consuming,
    joined,
    make_tasks,
    settle,
    settle_one,
    someone_else,
    spec,
)
from support.weights.fake_engine.engine import WeightedEngine
from support.weights.fake_engine.weights import WeightOptions

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
    arguments = {"tasks": TASKS, "name": "first", "scorer": score} | changes
    with pytest.raises(HoldfastError) as caught:
        asyncio.run(
            train(
                solve, journal=journal or MemoryJournal(), out=out, settings=settings, **arguments
            )
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
    ("changes", "arguments"),
    [
        ({"sampling": Sampling(top_p=0.9)}, "leave out top_p"),
        ({"sampling": Sampling(top_k=5)}, "leave out top_k"),
        ({"sampling": Sampling(min_p=0.1)}, "leave out min_p"),
        ({"sampling": Sampling(logit_bias={5: 1}, json=True)}, "leave out logit_bias, json"),
        (
            {"sampling": Sampling(chat_template_kwargs={"no_such": 1})},
            "never reads 'no_such'",
        ),
        ({"sampling": Sampling(temperature=0)}, "temperature above 0"),
        ({"sampling": Sampling(stop_token_ids=(99999,))}, "99999 is out of the vocabulary of"),
        ({"tasks": []}, "tasks is empty; give one task or more"),
        ({"tasks": [*TASKS, {"id": "a@2", "prompt": "?"}]}, "rename it"),
        ({"model": "no/such/folder"}, "no/such/folder"),
        ({"settings": lora("nothing_proj")}, "no modules called nothing_proj"),
        ({"settings": lora("q_proj", "nothing_proj")}, "no modules called nothing_proj"),
        ({"settings": structs.replace(SMALL, groups=3)}, "groups=3 is more than the 2 tasks"),
        ({"settings": structs.replace(SMALL, device="tpu")}, "device 'tpu' is none of cpu, cuda"),
        ({"settings": 3}, "settings is a TrainingSettings(…) or a dict, not 3"),
        ({"settings": {"step": 3}}, "TrainingSettings has no 'step'; is 'steps' meant?"),
        ({"settings": {"groups": 3}}, "groups=3 is more than the 2 tasks"),
        ({"settngs": {}}, "train has no argument 'settngs'; is 'settings' meant?"),
        ({"model": 3}, "model must be a path or a text, not 3"),
        ({"policy": 3}, "policy must be a text or a list, not 3"),
        ({"report": "print"}, "report must be a function, not 'print'"),
        ({"trackers": "wandb"}, "trackers must be a list, not 'wandb'"),
        ({"trackers": [3]}, "trackers[0] must be a Tracker or a text, not 3"),
        ({"stop": True}, "stop must be a Stop, not True"),
        ({"api_key": ["sk-secret"]}, "api_key must be a text, not of type list"),
        ({"name": 3}, "name must be a text, not 3"),
        ({"sampling": {"top_k": 5}}, "leave out top_k"),
        ({"rollout_settings": {"concurency": 5}}, "is 'concurrency' meant?"),
        ({"rollout_settings": 5}, "rollout_settings must be a Settings(…) or a dict"),
        ({"journal": 7}, "journal is a journal or its path, not 7"),
        ({"scorer": "score"}, "scorer is a function"),
        ({"scorer": None}, "nothing gives the trajectories of run 'first' a reward"),
        ({"loss": "dapo"}, "TrainingSettings.of(NAME)"),
        ({"loss": lambda batch: None}, "called as loss(batch, objective)"),
        ({"trackers": ["mlflow"]}, "no tracker is called 'mlflow'"),
        ({"tasks": "nowhere.jsonl"}, "nowhere.jsonl"),
        ({"settings": with_kl(Path("nowhere"))}, "the model nowhere does not exist"),
        ({"model": Path(__file__).parent}, "is not a Hugging Face folder"),
        ({"name": "a/b"}, "a/b"),
        ({"policy": ["http://127.0.0.1:9"]}, "127.0.0.1:9"),
    ],
)
def test_bad_input_is_said_before_anything_is_written(tmp_path, changes, arguments):
    journal = MemoryJournal()
    caught = attempt(tmp_path / "out", **({"journal": journal} | changes))
    assert arguments in str(caught.value)
    assert asyncio.run(journal.runs()) == []
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("out", [None, 3])
def test_out_is_a_path(out):
    assert f"out must be a path or a text, not {out}" in str(attempt(out).value)


@pytest.mark.parametrize(
    ("make", "arguments"),
    [
        (lambda: TrainingSettings(samples=1), "samples=1 with a baseline of the group"),
        (lambda: TrainingSettings(groups=0), "groups must be 1 or more"),
        (lambda: TrainingSettings(dtype="int8"), "int8"),
        (
            lambda: OptimizerSettings(learning_rate=3.0),
            "must be above 0 and below 1, not 3.0",
        ),
        (lambda: OptimizerSettings(learning_rate=float("nan")), "learning_rate"),
        (lambda: OptimizerSettings(max_norm=0.0), "max_norm"),
        (lambda: OptimizerSettings(schedule="square"), "square"),
        (lambda: TrainingSettings(reference=TINY), "KL coefficient is 0"),
        (lambda: Lora(rank=0), "rank=0"),
        (lambda: TrainerSettings(truncation="cut"), "truncation='cut' is none of keep, mask"),
        (lambda: TrainerSettings(discount=1.5), "discount=1.5"),
        (lambda: TrainerSettings(discount="0.9"), "discount"),
        (lambda: Clip(low=1.5), "clip low=1.5"),
        (lambda: Clip(high=-1.0), "clip high=-1.0"),
        (lambda: Cap(high=float("inf")), "cap high"),
    ],
)
def test_settings_that_make_no_sense_cannot_be_made(make, arguments):
    with pytest.raises(UsageError, match=arguments):
        make()


@pytest.fixture
def no_model(monkeypatch):
    """Nobody may load a model: that takes minutes for a large one."""

    def load(*_: object, **__: object) -> None:
        raise AssertionError("a model is loaded")

    monkeypatch.setattr("holdfast.training.run.train.Trainer", load)


def test_an_engine_without_token_ids_is_refused(tmp_path, no_model):
    journal = MemoryJournal()
    with FakeEngine(dialect="chat") as engine:
        caught = attempt(tmp_path / "out", journal=journal, policy=[engine.url])
    assert "without token ids" in str(caught.value)
    assert asyncio.run(journal.runs()) == []


def test_logprobs_of_another_distribution_are_refused(tmp_path, no_model):
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


def test_an_engine_that_takes_no_weights_is_refused(tmp_path, no_model):
    journal = MemoryJournal()
    with WeightedEngine(weights=WeightOptions(dev_mode=False)) as engine:
        caught = attempt(tmp_path / "out", journal=journal, policy=engine.url)
        assert engine.stats().requests <= 50, "probes, and no rollouts"
    assert "can take no weights" in str(caught.value)
    assert "VLLM_SERVER_DEV_MODE=1" in str(caught.value)
    assert asyncio.run(journal.runs()) == []
    assert not (tmp_path / "out").exists()


def test_an_engine_with_other_tokens_is_refused(tmp_path):
    journal = MemoryJournal()
    with WeightedEngine() as engine:
        caught = attempt(tmp_path / "out", journal=journal, policy=engine.url)
    assert "are bytes, not those of" in str(caught.value)
    assert asyncio.run(journal.runs()) == []


@pytest.fixture
def begun(tmp_path, monkeypatch):
    """A training whose engine did not start: the journal has its run, and nothing is sampled."""

    class NoEngine:
        def __init__(self, *arguments, **options):
            raise HoldfastError("no engine")

    monkeypatch.setattr("holdfast.training.run.serving.TrainingEngine", NoEngine)
    journal = MemoryJournal()
    attempt(tmp_path / "out", journal=journal).match("no engine")
    return journal


async def train_a_group(journal):
    """One step of run `first`, with one group."""
    run = await journal.find_run("first")
    await journal.admit(run, make_tasks("a"))
    worker = await joined(journal, run)
    for claim in await journal.claim(worker, groups=1):
        await settle(journal, claim)
    await journal.leave(worker)
    consumer = await consuming(journal, run, name="trainer")
    await journal.next_batch(consumer, 1, groups=1)
    await journal.commit(consumer, 1)
    await journal.unsubscribe(consumer)


def test_other_code_is_taken_until_a_step_is_trained(begun, tmp_path, monkeypatch):
    def other(trajectory):
        return 1.0

    out = tmp_path / "out"
    attempt(out, journal=begun, scorer=other).match("no engine")
    run = asyncio.run(begun.find_run("first"))
    assert "other" in run.spec.scorer
    assert len(run.changes) == 1
    assert attempt(out, journal=begun, tasks=TASKS[:1], scorer=other).type is RunChanged

    asyncio.run(train_a_group(begun))
    monkeypatch.setattr(Trainer, "__init__", None)  # The refusal comes before a model is loaded.
    assert attempt(out, journal=begun, scorer=score).type is RunChanged


def test_other_code_trains_on_from_the_model_once_a_step_is_trained(tmp_path):
    async def go_on(restored):
        journal = MemoryJournal()
        await journal.create_run(spec(), (), sealed=False)
        return await open_training(
            journal,
            structs.replace(spec(), scorer="other"),
            restored,
            settings=SMALL,
            folder=tmp_path,
        )

    with pytest.raises(RunChanged, match="goes on as it began; start a new training"):
        asyncio.run(go_on(Restored(1, (), "start a new training")))
    assert asyncio.run(go_on(Restored(0, ()))).spec.name == spec().name


def test_another_folder_trains_a_run_again_only_with_its_own_settings(begun, tmp_path):
    faster = TrainerSettings(optimizer=OptimizerSettings(learning_rate=1e-2), steps=2)
    other = structs.replace(SMALL, trainer=faster)
    attempt(tmp_path / "a", journal=begun, settings=other).match("no engine")
    attempt(tmp_path / "b", journal=begun).match("no engine")
    asyncio.run(train_a_group(begun))
    text = str(attempt(tmp_path / "c", journal=begun, settings=other).value)
    assert "was trained with other settings: learning_rate was 1e-06, now 0.01; go on" in text
    more = structs.replace(SMALL, trainer=structs.replace(SMALL.trainer, steps=9))
    attempt(tmp_path / "d", journal=begun, settings=more).match("no engine")


def test_a_checkpoint_whose_steps_were_given_back_since_is_not_trained_on_them_twice(tmp_path):
    lines = []

    async def go_on(restored_step, *, given_back):
        journal = MemoryJournal()
        run = await journal.create_run(spec(samples=1), make_tasks(*"abc"))
        for claim in await journal.claim(await joined(journal, run), groups=3):
            await settle(journal, claim)
        consumer = await consuming(journal, run, name="trainer")
        for step in (1, 2):  # A checkpoint of two steps, and a kill before its commit.
            await journal.next_batch(consumer, step, groups=1)
        if given_back:  # By an older journal, with which one step was trained again.
            await journal.rewind(consumer, 0)
            await journal.next_batch(consumer, 1, groups=1)
            await journal.commit(consumer, 1)
        await journal.unsubscribe(consumer)
        consumer = await consuming(journal, run, name="trainer")
        restored = Restored(restored_step, ())
        await rewind(journal, consumer, restored, trained=1, folder=tmp_path, report=lines.append)
        return {entry.step for entry in await journal.ledger(run, "trainer")}

    assert asyncio.run(go_on(2, given_back=False)) == {1, 2, None}
    assert asyncio.run(go_on(1, given_back=True)) == {1, None}
    with pytest.raises(OtherTraining, match=r"is at step 1 in this.*what step 2 was trained on"):
        asyncio.run(go_on(2, given_back=True))
    assert lines == []


@pytest.mark.usefixtures("begun")
def test_what_failed_for_good_is_tried_again_on_request_but_for_groups_that_were_given_out(
    tmp_path,
):
    journal, out, lines = MemoryJournal(), tmp_path / "wide", []
    start = partial(attempt, out, journal=journal, settings=structs.replace(SMALL, samples=3))
    start().match("no engine")
    run = asyncio.run(journal.find_run("first"))

    async def fail():
        await journal.admit(run, make_tasks("a", "b", "c"))
        worker = await joined(journal, run)
        delivered, taken, lost = await journal.claim(worker, groups=3)
        for claim in (delivered, taken):
            await settle_one(journal, claim.open[0])
            await settle_one(journal, claim.open[1])
            await settle_one(journal, claim.open[2], status=Status.FAILED)
        await settle(journal, lost, status=Status.FAILED)
        await journal.leave(worker)
        for name, groups in (("mine", 1), ("trainer", 2)):
            consumer = await consuming(journal, run, name=name)
            await journal.next_batch(consumer, 1, groups=groups)
            await journal.unsubscribe(consumer)

    def failed():
        rows = asyncio.run(journal.trajectories(run))
        return [str(row.key) for row in rows if row.status is Status.FAILED and row.settled]

    asyncio.run(fail())
    start().match("no engine")
    assert failed() == ["first/a/2", "first/b/2", "first/c/0", "first/c/1", "first/c/2"]
    start(retry_failed=True, report=lines.append).match("no engine")
    assert failed() == ["first/a/2"]
    assert lines == [
        "4 trajectories that failed for good: tried again",
        "1 trajectory that failed for good: not tried again, since their groups were given out",
    ]


def test_another_scorer_is_refused_while_another_consumer_has_groups(begun, tmp_path):
    def other(trajectory):
        return 1.0

    async def take(*names):
        run = await begun.find_run("first")
        await begun.admit(run, make_tasks("a", "b"))
        worker = await joined(begun, run)
        for claim in await begun.claim(worker, groups=2):
            await settle(begun, claim)
        await begun.leave(worker)
        for name in names:
            consumer = await consuming(begun, run, name=name)
            await begun.next_batch(consumer, 1, groups=1)
            await begun.unsubscribe(consumer)

    out = tmp_path / "out"
    asyncio.run(take("trainer", "mine"))
    refused = attempt(out, journal=begun, scorer=other)
    assert refused.type is RunChanged
    refused.match("consumer 'mine' has 1 group with the rewards of the recorded scorer")
    refused.match("give another --run and --out")

    async def give_back():
        run = await begun.find_run("first")
        consumer = await consuming(begun, run, name="mine")
        await begun.rewind(consumer, 0)
        await begun.unsubscribe(consumer)

    asyncio.run(give_back())
    attempt(out, journal=begun, scorer=other).match("no engine")


def test_other_tasks_and_a_run_that_another_process_trains_are_refused(begun, tmp_path):
    out = tmp_path / "out"
    assert attempt(out, journal=begun, tasks=TASKS[:1]).type is RunChanged

    async def hold():
        run = await begun.find_run("first")
        await begun.subscribe(run, "trainer", someone_else(), lease_seconds=600.0)

    asyncio.run(hold())
    before = sorted(path for path in out.rglob("*"))
    assert attempt(out, journal=begun).type is ConsumerHeld
    assert sorted(path for path in out.rglob("*")) == before


def test_a_trainer_keeps_its_lease_while_its_engine_starts(tmp_path, monkeypatch):
    """Else a second one could take the run meanwhile."""

    class CountedJournal(MemoryJournal):
        renewals = 0

        async def renew(self, consumer):
            await super().renew(consumer)
            self.renewals += 1

    class SlowEngine:
        def __init__(self, *_, **__):
            pass

        def serve(self):
            return self

        async def __aenter__(self):
            async with asyncio.timeout(60):
                while journal.renewals < 3:
                    await asyncio.sleep(0.01)
            raise UsageError("no engine")

        async def __aexit__(self, *_):
            pass

    journal = CountedJournal()
    monkeypatch.setattr("holdfast.training.run.serving.TrainingEngine", SlowEngine)
    lease = {"lease_seconds": 0.3}
    attempt(tmp_path, journal=journal, rollout_settings=lease).match("no engine")


def test_no_other_training_gives_weights_to_an_engine_that_was_started_for_one(tmp_path):
    owners = []

    async def look(t):
        (endpoint,) = t.speaker.policy.endpoints
        with pytest.raises(EngineInUse) as caught, hold_engines([endpoint.url], run="second"):
            pass
        owners.append(str(caught.value))
        await solve(t)

    one = structs.replace(SMALL, trainer=TrainerSettings(steps=1))
    training = train(
        look, tasks=TASKS, name="first", scorer=score, journal=MemoryJournal(), out=tmp_path,
        settings=one,
    )  # fmt: skip
    asyncio.run(training)
    assert "has the weights of another training (run 'first' in process" in owners[0]


def test_a_run_that_is_no_training_is_not_trained(tmp_path):
    journal = MemoryJournal()
    asyncio.run(journal.create_run(spec("first"), make_tasks("a")))
    caught = attempt(tmp_path / "out", journal=journal)
    assert "run 'first' is not a training" in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_a_training_is_no_run_for_others(begun):
    for accepted in (False, True):
        with pytest.raises(RunChanged, match="it is a training, and its trainer goes on with it"):
            asyncio.run(open_run(begun, spec("first"), make_tasks("a"), accept_changes=accepted))


# --- the folder


def test_a_folder_that_holds_something_else_is_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    assert "holds something else (thesis.tex)" in str(attempt(tmp_path).value)
    assert "is a file" in str(attempt(tmp_path / "thesis.tex").value)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_what_is_put_beside_checkpoints_is_no_reason_to_refuse_them(tmp_path):
    (tmp_path / "report.html").write_text("the report of a training, beside it")
    with pytest.raises(UsageError, match=r"holds something else \(report.html\)"):
        folder.check_folder(tmp_path)
    saved = tmp_path / "checkpoints" / "step-00000001"
    saved.mkdir(parents=True)
    (saved / "manifest.json").write_text("{}")
    folder.check_folder(tmp_path)


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    for out in (tmp_path / "file" / "out", Path("/proc/nothing")):
        assert "cannot be written" in str(attempt(out).value)


def test_a_journal_that_is_named_is_not_made_for_bad_input(tmp_path):
    path = tmp_path / "journal.db"
    attempt(tmp_path / "out", journal=path, settings=lora("nothing_proj"))
    assert list(tmp_path.iterdir()) == []


def test_a_folder_is_used_by_one_process_at_a_time(tmp_path):
    with use_folder(tmp_path / "out"):
        with (
            pytest.raises(FolderInUse, match=rf"another process .* \(pid {os.getpid()} on .*\): "),
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


async def test_weights_that_a_step_left_as_they_were_are_not_told_apart(tmp_path):
    trainer = Trainer(TINY, SMALL.trainer)
    state = TrainingState(trainer, SMALL, folder=tmp_path / "out", run="r")

    async def versions():
        journal = MemoryJournal()
        run = await journal.create_run(spec(), (), sealed=False)
        consumer = await consuming(journal, run)
        for step in range(3):
            trainer.step_number = step
            if step == 2:
                with torch.no_grad():
                    next(trainer.network.module.parameters()).mul_(1.5)
            yield await state.name_weights(journal, consumer)

    first, same, other = [version async for version in versions()]
    assert same.digest == first.digest != other.digest
    assert not compared(same.scores.logprobs, same.scores).is_blind
    assert other.scores.before
    assert compared(
        other.scores.logprobs, structs.replace(other.scores, before=other.scores.logprobs)
    ).is_blind


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
    text = str(attempt(saved, settings=settings).value)
    assert "other settings: groups was 1, now 2, seed was 0, now 5; go on with the same" in text
    slower = OptimizerSettings(learning_rate=1e-5)
    settings = structs.replace(SMALL, trainer=TrainerSettings(optimizer=slower, steps=2))
    assert "learning_rate was 1e-06, now 1e-05" in str(attempt(saved, settings=settings).value)
    model = other_model(tmp_path)
    assert "began from another model" in str(attempt(saved, model=model).value)
    assert "which this journal does not know" in str(attempt(saved).value)
    message = str(attempt(saved, journal=tmp_path / "nothing.db").value)
    assert f"there is no journal at {tmp_path / 'nothing.db'}" in message
    assert not (tmp_path / "nothing.db").exists()


def test_an_adapter_is_no_other_model(saved):
    settings = structs.replace(SMALL, lora=Lora(4))
    text = str(attempt(saved, settings=settings).value)
    assert "other settings: lora was none, now rank=4 alpha=32 targets=none; go on" in text


def resumed(folder, *, steps, schedule="constant"):
    optimizer = OptimizerSettings(schedule=schedule)
    trainer = structs.replace(SMALL.trainer, steps=steps, optimizer=optimizer)
    settings = structs.replace(SMALL, trainer=trainer)
    return TrainingState(Trainer(TINY, trainer), settings, folder=folder, run="first")


def test_steps_may_change_after_the_last_one_too(saved):
    for steps in (1, 2, 5):
        assert resumed(saved, steps=steps).restore().step == 1
    longer = resumed(saved, steps=3)
    longer.restore()
    longer.version = WeightFolder("step-3", saved, "digest")
    longer.trainer.step_number = 3
    longer.save()
    with pytest.raises(UsageError, match=r"step 3 in .* is later than --steps 2") as caught:
        resumed(saved, steps=2).restore()
    assert "--model" in str(caught.value)
    assert "/weights/step-3 --learning-rate 1e-06, another" in str(caught.value)
    assert resumed(saved, steps=5).restore().step == 3


def test_steps_that_the_learning_rate_depends_on_do_not_change(tmp_path):
    began = resumed(tmp_path, steps=3, schedule="linear")
    began.version = WeightFolder("step-1", tmp_path, "digest")
    began.trainer.step_number = 1
    began.save()
    with pytest.raises(UsageError, match="go down to 0 at the last step: steps was 3, now 5"):
        resumed(tmp_path, steps=5, schedule="linear").restore()


def test_a_damaged_checkpoint_is_no_reason_to_begin_anew(saved):
    (file,) = saved.glob("checkpoints/*/weights.safetensors")
    file.write_bytes(file.read_bytes()[:-1])
    caught = attempt(saved)
    assert caught.type is CheckpointDamaged
    assert "weights.safetensors was altered; none is whole" in str(caught.value)


def test_the_checkpoint_before_a_damaged_one_is_named(saved):
    state = TrainingState(Trainer(TINY, SMALL.trainer), SMALL, folder=saved, run="first")
    state.version = WeightFolder("step-2", saved, "digest")
    state.trainer.step_number = 2
    state.save()
    (saved / "checkpoints" / "step-00000002" / "state.json").unlink()
    restored = state.restore()
    assert restored.step == 1
    (note,) = restored.notes
    assert "step-00000002: state.json is missing; the one before it, step-00000001, is used" in note


def test_what_is_saved_or_evaluated_how_often_is_free(saved):
    other = structs.replace(SMALL, checkpoint_every=7, keep_checkpoints=1, eval_every=3)
    assert other.identity == SMALL.identity


# --- threads


async def test_a_cancelled_caller_waits_for_its_thread_however_often_it_is_cancelled():
    begun, go_on, done = threading.Event(), threading.Event(), threading.Event()

    def work():
        begun.set()
        go_on.wait(30)
        done.set()

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


def test_a_step_without_a_sampled_token_trained_nothing():
    empty = {"tokens": 0, "trajectories": 4, "groups_informative": 0, "gradient_norm": 0.0}
    assert (is_empty(empty), is_flat(empty)) == (True, False)
    report = TrainingReport("first", 2, Path("out"), "", [0.0, 0.0], {}, 1, empty_steps=1)
    assert report.trained_nothing


def test_a_disk_that_is_full_is_named(tmp_path):
    for error in (OSError(28, "No space left on device"), SafetensorError("… (os error 28)")):
        with pytest.raises(DiskFull, match="is full; free some space"), name_full_disk(tmp_path):
            raise error
    with pytest.raises(OSError, match="other"), name_full_disk(tmp_path):
        raise OSError(5, "other")


def test_another_model_is_named_before_the_learning_rate_that_it_has(saved, tmp_path):
    optimizer = OptimizerSettings(learning_rate=1e-5)
    settings = structs.replace(SMALL, trainer=TrainerSettings(optimizer=optimizer, steps=2))
    text = str(attempt(saved, model=other_model(tmp_path), settings=settings).value)
    assert "began from another model" in text


def test_columns_and_a_limit_are_as_in_a_run(tmp_path):
    rows = [{"question": "What is 1 + 2?"}] * 3
    assert "columns={'prompt': 'question'}" in str(attempt(tmp_path, tasks=rows).value)
    named = {"tasks": rows, "columns": {"prompt": "question"}}
    few = structs.replace(SMALL, groups=3)
    assert "2 tasks" in str(attempt(tmp_path, **named, limit=2, settings=few).value)


def test_a_report_counts_the_steps_that_trained_nothing():
    report = TrainingReport("first", 2, Path("out"), "", [0.0, 0.0], {}, skipped_steps=2)
    assert report.trained_nothing
    assert not structs.replace(report, skipped_steps=1).trained_nothing
    assert structs.replace(report, skipped_steps=1, flat_steps=1).trained_nothing
    assert structs.replace(report, skipped_steps=0, flat_steps=2).trained_nothing
    assert not structs.replace(report, steps=0, skipped_steps=0).trained_nothing


def test_an_update_whose_gradients_are_not_finite_is_counted():
    def broken(batch, objective):
        loss, parts = policy_loss(batch, objective)
        return loss * float("nan"), parts

    result = Trainer(TINY, SMALL.trainer, loss=broken).step([_group()])
    assert (result.updates, result.skipped_updates) == (1, 1)


def test_a_step_of_equal_rewards_has_no_gradient():
    group = _group()
    members = tuple(structs.replace(each, reward=0.1) for each in group.trajectories)
    equal = structs.replace(group, trajectories=members)
    assert is_flat(Trainer(TINY, SMALL.trainer).step([equal]).numbers | {"groups_informative": 0})


def test_a_step_without_groups_changes_nothing():
    trainer = Trainer(TINY, SMALL.trainer)
    before = {name: tensor.clone() for name, tensor in trainer.weights().items()}
    result = trainer.step([])
    assert is_flat(result.numbers | {"groups_informative": 0})
    assert (result.loss, result.tokens, trainer.step_number) == (0.0, 0, 1)
    assert all(torch.equal(t, before[n]) for n, t in trainer.weights().items())


def test_a_gap_that_nothing_explains_ends_the_training_before_the_step_is_saved(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(gap, "explained", lambda *dtypes: 0.0)
    monkeypatch.setattr(gap, "PROBED_BY_WEIGHTS", 10**6)  # Else it would not come to a step.
    objective = Objective(entropy=0.01)  # So that groups of equal rewards are computed, too.
    settings = structs.replace(SMALL, trainer=structs.replace(SMALL.trainer, objective=objective))
    out = tmp_path / "out"
    caught = attempt(out, settings=settings)
    assert caught.type is gap.GapTooWide
    caught.match("step 1: the logprobs of engine and trainer are .* nats apart on average")
    assert not (out / "checkpoints").exists()
    assert [path.name for path in (out / "weights").iterdir()] == ["step-0"]


def test_where_rollouts_run_ahead_of_the_weights_the_gap_is_asked_for(tmp_path, monkeypatch):
    """As in an asynchronous training, whose steps have no token of the weights in force."""
    for module in (training_batch, gap):
        monkeypatch.setattr(module, "is_sampled_by", lambda sample, version: False)
    monkeypatch.setattr(gap, "PROBED_BY_WEIGHTS", 10**6)  # Nothing is compared at the start.
    settings = structs.replace(SMALL, trainer=structs.replace(SMALL.trainer, steps=2))
    asyncio.run(
        train(
            solve, tasks=TASKS, journal=MemoryJournal(), name="first", out=tmp_path / "right",
            scorer=score, settings=settings,
        )
    )  # fmt: skip
    lines = read(tmp_path / "right/metrics.jsonl")
    assert [line["asked_gap_max"] < 1e-3 for line in lines] == [True, True]

    monkeypatch.setattr(gap, "explained", lambda *dtypes: 0.0)
    caught = attempt(tmp_path / "wrong", settings=settings)
    assert caught.type is gap.GapTooWide
    caught.match("step 1: the logprobs of engine and trainer are .* nats apart on average")
    assert not (tmp_path / "wrong/checkpoints").exists()


def test_a_step_shows_what_moves_on_the_terminal_in_the_file_and_in_trackers(tmp_path):
    logged = {}

    class Seen:
        def log(self, numbers, step):
            logged[step] = dict(numbers)

        def close(self):
            pass

    def scored(trajectory):
        length = len(trajectory.reply)
        return Score(length / (1 + length), metrics={"characters": length})

    lines = []
    asyncio.run(
        train(
            solve,
            tasks=TASKS,
            journal=MemoryJournal(),
            name="first",
            out=tmp_path / "out",
            scorer=scored,
            settings=structs.replace(
                SMALL, groups=2, samples=4, trainer=structs.replace(SMALL.trainer, steps=1)
            ),
            trackers=[Seen()],
            report=lines.append,
        )
    )
    (line,) = [line for line in lines if line.startswith("step 1 ")]
    assert re.match(r"step 1     reward 0\.\d{3} ± 0\.\d{3}  gap \d(\.\d)?e-\d\d  clipped ", line)
    assert re.search(r" tokens/s\s.* s\s+characters \d", line, re.DOTALL)
    assert max(map(len, line.splitlines())) <= 100
    (numbers,) = (n for n in read(tmp_path / "out/metrics.jsonl") if n.pop("step") == 1)
    assert numbers["scorer/characters"] > 0
    assert numbers["sampled_tokens"] >= numbers["tokens"] > 0
    assert logged[1] == numbers
