"""Creates, finds or refuses the run of a training in its journal, and brings it to the checkpoint.

Training continues from the restored checkpoint, and the ledger is rewound or brought forward to its
step. Until a step is trained, the run does not depend on the code, so the same command may be used
with changed code.
"""

from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path

from msgspec import structs

from holdfast.engine.open_run import TRAINER, RunChanged, find_left_unscored, is_trained
from holdfast.engine.report import many
from holdfast.engine.scoring.retry import open_for_retry
from holdfast.journal import is_server
from holdfast.journal.process import this_process
from holdfast.journal.rules import two_scorers
from holdfast.journal.sql.journal import Journal
from holdfast.journal.types import Consumer
from holdfast.records.errors import JournalCorrupt, UsageError
from holdfast.records.history import History
from holdfast.records.run import Run, RunSpec
from holdfast.records.samples.version import newest_of
from holdfast.training.run.folder import OtherTraining, use_journal
from holdfast.training.run.loop import Restored, different_settings, read_restored
from holdfast.training.settings import TrainingRecord, TrainingSettings, training_of


async def open_training(
    journal: Journal,
    spec: RunSpec,
    restored: Restored,
    *,
    settings: TrainingSettings,
    folder: Path,
) -> Run:
    """Creates or finds the run. Raises `UsageError` if the run exists and is not a training, or is
    a different training."""
    run = await journal.find_run(spec.name)
    if run is None and restored.step:
        raise UsageError(
            f"{folder} has step {restored.step} of run {spec.name!r}, which this journal does not "
            "know: give the journal that it was trained with, or another --out"
        )
    if run is None:
        return await journal.create_run(spec, (), sealed=False)
    is_sealed = (await journal.progress(run)).sealed
    if is_sealed and not await journal.versions(run):
        raise UsageError(
            f"run {spec.name!r} is not a training: all its tasks were there when it began; give "
            "another --run"
        )
    differences = run.spec.differences(spec)
    if differences and (objections := await _find_objections(journal, run, spec, restored)):
        named = [
            "tasks: others than recorded" if d.startswith("tasks:") else d for d in differences
        ]
        raise RunChanged(spec.name, named, objections=objections)
    if not restored.step and await is_trained(journal, run):
        _check_settings(run, settings, folder=folder)
    return run


async def check_unchanged(
    journal: Journal | Path | str, spec: RunSpec, *, settings: TrainingSettings, folder: Path
) -> None:
    """Raises the errors of `open_training` for a run that exists, before its model is loaded."""
    if isinstance(journal, Path | str) and not is_server(journal) and not Path(journal).exists():
        return
    async with use_journal(journal, False) as opened:
        if await opened.find_run(spec.name) is not None:
            restored = read_restored(folder)
            await open_training(opened, spec, restored, settings=settings, folder=folder)


def _check_settings(run: Run, settings: TrainingSettings, *, folder: Path) -> None:
    """Raises `OtherTraining` if the run was trained with other settings. The settings are compared
    with those that the run records, because a folder without checkpoints records none."""
    recorded = training_of(run)
    if recorded and (changed := different_settings(recorded.settings, settings)):
        raise OtherTraining(
            f"run {run.spec.name!r} was trained with other settings: {', '.join(changed)}; go on "
            f"with the same (in {folder}, its steps are trained again from the recorded rollouts), "
            "or give another --run"
        )


async def changes_of_training(
    journal: Journal, run: Run, spec: RunSpec, settings: TrainingSettings, *, code: str
) -> list[str]:
    """Returns the reasons why the training cannot continue with this code, data and settings, in a
    few words each; [] if it can. `code` is the name of the user's file."""
    then = run.spec
    now = structs.replace(spec, name=then.name, model=then.model, renderer=then.renderer)
    recorded = training_of(run)
    changes = different_settings(recorded.settings, settings) if recorded else []
    if then.differs_by_code(now) and not await is_trained(journal, run):
        return changes
    changes += then.changed_code(now, code=code)
    fields = [name for name in then.changed(now) if name not in ("rollout", "scorer", "samples")]
    return [*changes, *(f"{name.rpartition('.')[2]} changed" for name in fields)]


async def begin_record(
    journal: Journal,
    run: Run,
    restored: Restored,
    *,
    settings: TrainingSettings,
    trained: int,
    folder: Path,
) -> TrainingRecord:
    """Returns the record that the run gets of its training. `trained` is the last step for which
    the run has a version of the weights. Raises `OtherTraining` if training of this run has
    continued in another folder since."""
    stored_run = await journal.find_run(run.spec.name)
    before = training_of(stored_run or run)
    number = 1 if before is None else before.folder
    if not restored.step:
        number += before is not None and trained > 0
    elif restored.folder < number:
        raise OtherTraining(
            f"{folder} has step {restored.step}, and another folder took run {run.spec.name!r} "
            "over since, and trains its steps again: these weights would be trained on the same "
            "groups beside those; go on in the other folder, move the checkpoints of this one away "
            "to take the run over with it, or give another --run and --out"
        )
    is_behind = restored.step < min(trained, settings.trainer.steps)
    return TrainingRecord(settings.identity, max(number, restored.folder), is_behind)


async def open_again(journal: Journal, run: Run, *, steps: int) -> None:
    """Opens a finished run for more tasks, if the training now has more steps than before."""
    newest = newest_of(await journal.versions(run))
    if (await journal.progress(run)).sealed and newest is not None and newest.step < steps:
        await journal.unseal(run)


async def _find_objections(journal: Journal, run: Run, spec: RunSpec, restored: Restored) -> str:
    """Returns why the training cannot continue with these changes; "" if it can."""
    if not await _may_change_code(journal, run, spec, restored):
        other = restored.train_on or "give another --run and --out"
        return f"a training goes on as it began; {other}"
    held = await journal.held_groups(run)
    held.pop(TRAINER, None)  # Untrained groups are given back before the code changes.
    if held and run.spec.has_other_scorer(spec):
        return f"{two_scorers(held)}, or give another --run and --out"
    if unscored := await find_left_unscored(journal, run, spec):
        return f"{unscored}, or give another --run and --out"
    return ""


async def _may_change_code(journal: Journal, run: Run, spec: RunSpec, restored: Restored) -> bool:
    """Returns whether the code of the run may change, which is allowed until a step is trained. For
    example, users often add a missing scorer to the same file."""
    return (
        run.spec.differs_by_code(spec) and not restored.step and not await is_trained(journal, run)
    )


async def rewind(
    journal: Journal,
    consumer: Consumer,
    restored: Restored,
    *,
    trained: int,
    folder: Path,
    report: Callable[[str], None],
) -> None:
    """Brings the ledger to the step of the checkpoint. The ledger goes back, or forward if a kill
    came between the checkpoint and its commit. `trained` is the last step for which the run has a
    version of the weights."""
    for note in restored.notes:
        report(note)
    await _check_forward(journal, consumer, restored, folder=folder)
    await journal.rewind(consumer, restored.step)
    trained = max(trained, consumer.committed or 0)
    if trained > restored.step:
        report(
            f"run {consumer.run.spec.name!r} was trained up to step {trained}, and {folder} has "
            f"step {restored.step}: the steps between are trained again from the recorded rollouts"
        )


async def _check_forward(
    journal: Journal, consumer: Consumer, restored: Restored, *, folder: Path
) -> None:
    """Raises `OtherTraining` if groups that the checkpoint was trained on are free in the ledger,
    because they would be trained twice. After a kill between a checkpoint and its commit, the
    groups of its steps are still taken, and nothing is raised."""
    committed = consumer.committed or 0
    if restored.step <= committed:
        return
    taken = {entry.step for entry in await journal.ledger(consumer.run, consumer.name)}
    missing = [step for step in range(committed + 1, restored.step + 1) if step not in taken]
    if missing:
        raise OtherTraining(
            f"{folder} has step {restored.step}, and run {consumer.run.spec.name!r} is at step "
            f"{committed} in this journal, where what step {missing[0]} was trained on is free: "
            "these weights would be trained on it twice; go on with the journal that belongs to "
            "these steps, or with another --run and --out"
        )


async def adopt_code(
    journal: Journal, consumer: Consumer, spec: RunSpec, *, report: Callable[[str], None]
) -> Consumer:
    """Replaces the run's code by the changed code. Existing rollouts stay, and the new scorer
    scores them."""
    run = consumer.run
    differences = run.spec.differences(spec)
    if not differences:
        return consumer
    worker = await journal.join(
        run, this_process(), lease_seconds=consumer.lease_seconds, share=False
    )
    try:
        run = await journal.amend_run(run, spec, await journal.tasks(run), differences=differences)
    finally:
        await journal.leave(worker)
    report(
        "nothing was trained yet: the run goes on with the code as it is now, and what is rolled "
        "out already is scored by it"
    )
    return structs.replace(consumer, run=run)


async def find_lost_versions(
    journal: Journal, run: Run, version: str, *, report: Callable[[str], None]
) -> set[str]:
    """Returns the names of lost versions: all other versions of the step of `version`, and all
    versions of later steps. They are lost because steps that are trained again may give other
    weights. Reports the trajectories that had begun with lost versions."""
    versions = await journal.versions(run)
    step = next(each.step for each in versions if each.name == version)
    lost = {each.name for each in versions if each.step >= step} - {version}
    if lost and (begun := await _count_begun(journal, run, lost)):
        report(
            f"{many(begun, 'trajectory')} had begun with weights that are lost, and begin anew "
            f"with {version}"
        )
    return lost


async def _count_begun(journal: Journal, run: Run, versions: Collection[str]) -> int:
    count = 0
    for row in await journal.trajectories(run):
        if row.records and not row.settled:
            with suppress(JournalCorrupt):  # Its worker cuts the log and reports it.
                history = History(await journal.history(row.id))
                count += history.finished is None and history.sampled_by(versions)
    return count


async def retry_failed(journal: Journal, run: Run, *, report: Callable[[str], None]) -> None:
    """Reopens trajectories that failed for good, with new budgets, and asks again for verdicts that
    could not be read. Skips groups that were given to a consumer. Recorded steps of a trajectory
    are replayed."""
    failed = (await journal.progress(run)).failed
    opened, unread = await open_for_retry(journal, run)
    if opened:
        report(f"{many(opened, 'trajectory')} that failed for good: tried again")
    if unread:
        report(f"{many(unread, 'verdict')} that could not be read: asked for again")
    if failed > opened:
        stay = many(failed - opened, "trajectory")
        report(f"{stay} that failed for good: not tried again, since their groups were given out")
