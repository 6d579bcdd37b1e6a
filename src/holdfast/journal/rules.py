"""What every journal refuses in the same words."""

from collections.abc import Sequence

from holdfast.journal.journal import Consumer
from holdfast.records.encoding.bounds import check_number, check_whole
from holdfast.records.errors import ConsumerHeld, LeaseLost, UsageError
from holdfast.records.run import MAX_TRAJECTORIES, Run
from holdfast.records.task import Task

MAX_NAME = 200


def check_size(run: Run, *, planned: int, more: int) -> None:
    """Raises when `more` tasks would make the run larger than a run may be."""
    total = planned + more * run.spec.samples
    if total > MAX_TRAJECTORIES:
        raise UsageError(
            f"run {run.spec.name!r} would have {total:,} trajectories, and a run has at most "
            f"{MAX_TRAJECTORIES:,}; seal it, and begin another run"
        )


def distinct(run: Run, tasks: Sequence[Task]) -> list[Task]:
    """Each task once; `UsageError` where one id stands for two contents."""
    found: dict[str, Task] = {}
    for task in tasks:
        if found.setdefault(task.id, task) != task:
            raise other_task(run, task.id)
    return list(found.values())


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
    """The ordinal of a version that is published already, if the bytes are the same."""
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


def check_reason(reason: object) -> None:
    _check_name("the reason of a dismissal", reason)


def _check_name(what: str, name: object) -> None:
    if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME:
        raise UsageError(f"{what} has 1 to {MAX_NAME} characters: {name!r:.300}")


def consumer_held(run: Run, name: str, *, holder: str, seconds: float) -> ConsumerHeld:
    return ConsumerHeld(
        f"{holder} consumes run {run.spec.name!r} as {name!r}, and holds it for {seconds:.0f} s "
        "more; stop it, or wait for it, or consume under another name"
    )


def lease_lost(consumer: Consumer) -> LeaseLost:
    return LeaseLost(
        f"another process has taken consumer {consumer.name!r} of run "
        f"{consumer.run.spec.name!r} over; this one can neither take, commit nor rewind any more, "
        "and nothing was changed"
    )


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
