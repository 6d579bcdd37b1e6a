"""Checks and errors that every journal shares."""

from collections.abc import Mapping, Sequence

from msgspec import structs

from holdfast.journal.types import Consumer
from holdfast.records.encoding.bounds import check_characters, check_number, check_whole
from holdfast.records.errors import ConsumerHeld, LeaseLost, RunHeld, UsageError
from holdfast.records.run import MAX_TRAJECTORIES, Run, RunSpec
from holdfast.records.task import Task, content_digest

MAX_NAME = 200
MAX_TAG = 60


def check_size(run: Run, *, planned: int, more: int) -> None:
    """Raises `UsageError` if the run would have too many trajectories: `planned` trajectories, and
    the trajectories of `more` tasks."""
    total = planned + more * run.spec.samples
    if total > MAX_TRAJECTORIES:
        raise UsageError(
            f"run {run.spec.name!r} would have {total:,} trajectories, and a run has at most "
            f"{MAX_TRAJECTORIES:,}; seal it, and begin another run"
        )


def distinct(run: Run, tasks: Sequence[Task]) -> list[Task]:
    """Returns each task once. Raises `UsageError` if one id has two contents."""
    by_id: dict[str, Task] = {}
    for task in tasks:
        if by_id.setdefault(task.id, task) != task:
            raise other_task(run, task.id)
    return list(by_id.values())


def other_task(run: Run, name: str) -> UsageError:
    return UsageError(
        f"run {run.spec.name!r} has another task {name!r}: the same id stands for the same "
        "content; rename one of them"
    )


def run_sealed(run: Run, name: str) -> UsageError:
    return UsageError(
        f"run {run.spec.name!r} is sealed, and takes no more tasks ({name!r} is new); begin "
        "another run"
    )


def check_version(name: object, step: object, digest: object) -> None:
    _check_name("a weight version's name", name)
    _check_name("a weight version's digest", digest)
    check_whole("a weight version's step", step, least=0)


def known_version(run: Run, name: str, digest: str, *, known: tuple[int, str]) -> int:
    """Returns the ordinal of a published version. Raises `UsageError` if the version was published
    with another digest."""
    ordinal, recorded = known
    if recorded != digest:
        raise UsageError(
            f"version {name!r} of run {run.spec.name!r} has weights with digest {recorded}, not "
            f"{digest}; a name never stands for other weights: give these a name of their own"
        )
    return ordinal


def check_consumer(name: object, lease_seconds: object) -> None:
    _check_name("a consumer's name", name)
    check_number("lease_seconds", lease_seconds)
    if not lease_seconds > 0:  # type: ignore[operator]
        raise UsageError(f"lease_seconds must be more than 0, not {lease_seconds}")


def check_batch(groups: object, step: object = 0) -> None:
    check_whole("groups", groups, least=1)
    check_whole("step", step, least=-(2**63))


def check_step(step: object) -> None:
    """Checks the step of a commit or a rewind. A step that is not a whole number could be written
    but not read again."""
    check_whole("step", step, least=0)


def check_reason(reason: object) -> None:
    _check_name("the reason of a dismissal", reason)


def _check_name(what: str, name: object) -> None:
    if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME:
        raise UsageError(f"{what} has 1 to {MAX_NAME} characters: {name!r:.300}")
    check_characters(what, name)


def consumer_held(run: Run, name: str, *, holder: str, seconds: float) -> ConsumerHeld:
    # A loop of the user's own can choose a consumer name. `holdfast train` can choose a run.
    other = "train another run (--run)" if name == "trainer" else "consume under another name"
    return ConsumerHeld(
        f"{holder} consumes run {run.spec.name!r} as {name!r}, and holds it for {seconds:.0f} s "
        f"more; stop it, or wait for it, or {other}"
    )


def consumed_run(run: Run, name: str, *, holder: str, seconds: float) -> ConsumerHeld:
    """Returns the error for an attempt to rename or delete a run that a consumer holds."""
    return ConsumerHeld(
        f"{holder} consumes run {run.spec.name!r} as {name!r}, and holds it for {seconds:.0f} s "
        "more; stop it, or wait for it, and try again; nothing was changed"
    )


def shared_and_consumed(run: Run, other: Run, consumer: str) -> UsageError:
    return UsageError(
        f"run {run.spec.name!r} shares trajectories with {other.spec.name!r}, which consumer "
        f"{consumer!r} has: they would be delivered twice; consume that run, or sample this one "
        "anew (--new; from Python: new=True)"
    )


def lease_lost(consumer: Consumer) -> LeaseLost:
    return LeaseLost(
        f"another process has taken consumer {consumer.name!r} of run "
        f"{consumer.run.spec.name!r} over; this one can neither take, commit nor rewind any more, "
        "and nothing was changed"
    )


def two_scorers(held: Mapping[str, Sequence[str]]) -> str:
    """Returns the reason why a run cannot get another scorer while consumers have its groups, and
    how to give the groups back."""
    return (
        f"{held_text(held)} with the rewards of the recorded scorer, and would get those of two: "
        f"give these groups back first, {give_back(next(iter(held)))}"
    )


def tasks_scored_anew(
    recorded: RunSpec,
    spec: RunSpec,
    before: Mapping[str, Task],
    tasks: Sequence[Task],
    *,
    held: Mapping[str, Sequence[str]],
) -> set[str]:
    """Returns the tasks whose outcomes are scored again when a run is amended.

    With another scorer, these are all recorded tasks. With the same scorer, these are the tasks
    whose content changed. Without a scorer, there are none. Raises `UsageError` if a consumer has a
    group that would mix two rewards: any group if the scorer changed, otherwise a group of a
    changed task.
    """
    if recorded.has_other_scorer(spec):
        if held:
            raise UsageError(f"run {recorded.name!r}: {two_scorers(held)}, or begin another run")
        return set(before) if spec.scorer else set()
    if not spec.scorer:
        return set()
    changed = {task.id for task in tasks if task.id in before and _differs(before[task.id], task)}
    having = {name: [task for task in had if task in changed] for name, had in held.items()}
    if who := held_text(having):
        raise UsageError(
            f"run {recorded.name!r}: {who} of tasks that changed, with the rewards of what they "
            "were: give them back first, or begin another run"
        )
    return changed


def _differs(recorded: Task, now: Task) -> bool:
    return recorded != now and content_digest(recorded) != content_digest(now)


def held_text(held: Mapping[str, Sequence[str]]) -> str:
    """Returns a text that says how many groups each consumer has; "" if there are no groups."""
    numbers = {name: len(tasks) for name, tasks in held.items() if tasks}
    return " and ".join(
        f"consumer {name!r} has {number:,} group{'' if number == 1 else 's'}"
        for name, number in numbers.items()
    )


def give_back(consumer: str) -> str:
    """Returns the Python code that gives a consumer's groups back."""
    return f"Delivery(…, consumer={consumer!r}, checkpoint=0)"


def run_held(run: Run, workers: Sequence[str]) -> RunHeld:
    return RunHeld(
        f"run {run.spec.name!r} is being worked on by {', '.join(workers)}; wait for it, stop it, "
        "or add --join to share the work (from Python: Settings(join=True))"
    )


def run_in_use(run: Run, workers: Sequence[str]) -> RunHeld:
    return RunHeld(
        f"run {run.spec.name!r} is being worked on by {', '.join(workers)}; stop it, or wait for "
        "it, and try again; nothing was changed"
    )


def blobs_in_use(run: Run, others: Sequence[str]) -> RunHeld:
    names = ", ".join(map(repr, others))
    return RunHeld(
        f"run {run.spec.name!r} has snapshots or tool schemas that {names} may be about to use: "
        "delete it when nobody works on other runs of this journal; nothing was changed"
    )


def journal_in_use(others: Sequence[str]) -> RunHeld:
    return RunHeld(
        f"{', '.join(map(repr, others))} is being worked on, and would have to wait while space is "
        "given back; do it later"
    )


def amended_spec(recorded: RunSpec, spec: RunSpec) -> RunSpec:
    """Returns the new spec of an amended run. Keeps the recorded tags, training settings, series,
    `fresh` and lineage, and the recorded command if the new spec has none."""
    return structs.replace(
        spec,
        tags=recorded.tags,
        command=spec.command or recorded.command,
        training=recorded.training,
        series=recorded.series,
        fresh=recorded.fresh,
        lineage=recorded.lineage,
    )


def name_taken(name: str) -> UsageError:
    return UsageError(
        f"run {name!r} exists already in this journal: give another name, or rename or delete it"
    )


def check_tags(tags: Sequence[object]) -> tuple[str, ...]:
    """Checks the tags, and returns each tag once, in their order."""
    texts: list[str] = []
    for tag in tags:
        if not isinstance(tag, str) or not 0 < len(tag) <= MAX_TAG or not tag.isprintable():
            raise UsageError(f"a tag has 1 to {MAX_TAG} characters on one line: {tag!r:.300}")
        if "," in tag or tag != tag.strip():
            raise UsageError(f"a tag has no commas, and no space at its ends: {tag!r}")
        texts.append(tag)
    return tuple(dict.fromkeys(texts))


def step_passed(name: str, *, step: int, last: int) -> UsageError:
    return UsageError(
        f"consumer {name!r} is at step {last}; step {step} got an empty batch or is in the past. "
        "Ask for a later step, or rewind first"
    )


def not_taken(consumer: str, tasks: Sequence[str]) -> UsageError:
    names = ", ".join(map(repr, tasks[:5])) + (", …" if len(tasks) > 5 else "")
    return UsageError(
        f"consumer {consumer!r} does not have {names}: only a group that it took, and that is in "
        "no other step and not dismissed, can be committed or dismissed"
    )
