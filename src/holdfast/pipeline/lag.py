"""How many steps the tokens of a group are behind the weights that are trained with them."""

from collections.abc import Iterable, Sequence

from msgspec import Struct

from holdfast.journal.journal import Journal
from holdfast.records.run import Run
from holdfast.records.samples.version import WeightVersion
from holdfast.records.step import VersionSource
from holdfast.training.batch import TrainingGroup


class Lag(Struct, frozen=True):
    """In steps, of the newest and of the oldest sampled token."""

    newest: int
    oldest: int


class PublishedVersions:
    """The versions of a run by name; each is read from the journal once."""

    def __init__(self, journal: Journal, run: Run):
        self._journal = journal
        self._run = run
        self._known: dict[str, WeightVersion] = {}

    async def in_force(self, step: int) -> WeightVersion | None:
        """The newest one that `step` (its optimizer step) has made."""
        found = await self._journal.versions(self._run)
        self._known = {version.name: version for version in found}
        made = [version for version in found if version.step == step]
        return made[-1] if made else None

    def lag(self, group: TrainingGroup, now: WeightVersion) -> Lag | None:
        """None where a token's version is not known, or where nothing was sampled."""
        spans = [
            span
            for trajectory in group.trajectories
            for sample in trajectory.samples
            for span in sample.version_spans
        ]
        if any(span.source is VersionSource.UNKNOWN for span in spans):
            return None
        behind = [self._behind(span.version, now) for span in spans]
        known = [number for number in behind if number is not None]
        if not known or len(known) < len(behind):
            return None
        return Lag(min(known), max(known))

    def _behind(self, name: str, now: WeightVersion) -> int | None:
        version = self._known.get(name)
        return None if version is None else max(0, now.step - version.step)


def widest(lags: Iterable[Lag | None]) -> Lag | None:
    """Over all of a batch."""
    known = [lag for lag in lags if lag is not None]
    if not known:
        return None
    return Lag(min(lag.newest for lag in known), max(lag.oldest for lag in known))


def sampled_tokens(groups: Sequence[TrainingGroup]) -> int:
    return sum(t.sampled_tokens for group in groups for t in group.trajectories)
