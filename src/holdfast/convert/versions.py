"""Weight versions of a run, read from the journal, and the steps of the weights in a sample."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from holdfast.convert.checks import listed
from holdfast.engine.export.read import opened_to_read
from holdfast.journal.sql.find_run import run_named
from holdfast.journal.sql.journal import Journal
from holdfast.records.samples.sample import Sample
from holdfast.records.samples.version import WeightVersion


async def load_versions(journal: Journal | str | Path, run: str) -> list[WeightVersion]:
    """Loads the versions that the trainer of a run has published, in order."""
    async with opened_to_read(journal) as opened:
        return await opened.versions(await run_named(opened, run))


def steps_of(function: str, versions: Iterable[WeightVersion]) -> Mapping[str, int]:
    """Returns the step of each version. Raises `UsageError` for anything but `WeightVersion`s."""
    wants = f"{function} wants the versions of the run (await holdfast.convert.load_versions(…))"
    checked = listed(versions, wants, lambda item: isinstance(item, WeightVersion))
    return {version.name: version.step for version in checked}


def global_steps(sample: Sample, known: Mapping[str, int]) -> tuple[int | None, int | None]:
    """Returns the steps of the oldest and the newest weights in the sample. Both are None if some
    weights are not `known`, because steps are never guessed."""
    steps = [known.get(span.version) for span in sample.version_spans]
    known_steps = [step for step in steps if step is not None]
    if not known_steps or len(known_steps) < len(steps):
        return None, None
    return min(known_steps), max(known_steps)
