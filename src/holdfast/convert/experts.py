"""Reads routed experts of samples, for trainers that route each token as the engine did.

The experts are read from the journal's blobs, and are passed to a converter together with the
samples. A trainer that replays routes needs the experts of every token except the last one, so a
sample that lacks some of them is refused.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.engine.export.export import history_of
from holdfast.engine.export.read import opened_to_read
from holdfast.extras import needed_by
from holdfast.journal.sql.find_run import run_named
from holdfast.journal.sql.journal import Journal
from holdfast.journal.types import TrajectoryRow
from holdfast.records.errors import NotTrainable, UsageError
from holdfast.records.samples.experts import RoutedExperts
from holdfast.records.samples.sample import Sample, experts_of

if TYPE_CHECKING:
    with needed_by("load_experts"):
        import numpy as np

    Rows = np.ndarray[Any, Any]
    Experts = Mapping[tuple[str, int], Rows]
    """Arrays by trajectory and branch, of the shape tokens × layers × experts of a layer. If the
    engine does not report the number of layers, the shape is tokens × experts."""
MAX_EXPERT = 32_767
_TYPES = {1: "u1", 2: "<u2", 4: "<u4"}


async def load_experts(
    journal: Journal | str | Path, run: str, *, members: Sequence[TrajectoryRow] | None = None
) -> "Experts":
    """Loads the routed experts of the trajectories in `members`, by trajectory and branch. If
    `members` is None, loads those of all settled, valid trajectories of the run. A branch with
    missing rows is left out."""
    async with opened_to_read(journal) as opened:
        if members is None:
            members = [
                row
                for row in await opened.trajectories(await run_named(opened, run))
                if row.settled and row.status.is_outcome
            ]
        rows_by_trajectory: dict[tuple[str, int], Rows] = {}
        for member in members:
            history = await history_of(opened, member)
            for branch, spans in enumerate(experts_of(history)):
                rows = await _read(opened, spans)
                if rows is not None:
                    rows_by_trajectory[f"{member.key.task}/{member.key.sample}", branch] = rows
        return rows_by_trajectory


async def _read(journal: Journal, spans: Sequence[RoutedExperts]) -> "Rows | None":
    import numpy as np

    if not spans or len({span.shape for span in spans}) > 1:
        return None
    width, layers, size = spans[0].shape
    # 16 bits suffice, as in verl: engines have fewer experts than that.
    routes = np.full((max(span.end for span in spans), width), -1, dtype=np.int32)
    for span in spans:
        body = await journal.get_blob(span.blob)
        rows = np.frombuffer(body, dtype=_TYPES[size]).reshape(-1, width)
        routes[span.start : span.end] = rows[: span.end - span.start]
    if routes.min(initial=0) < 0 or routes.max(initial=0) > MAX_EXPERT:
        return None
    shape = (-1, layers, width // layers) if layers else (-1, width)
    return routes.astype(np.int16).reshape(shape)


def check_experts(experts: object) -> None:
    """Raises `UsageError` if the value is not a mapping as `load_experts` returns it."""
    if experts is not None and not isinstance(experts, Mapping):
        raise UsageError(
            "experts are what load_experts gives, by trajectory and branch, not of type "
            f"{type(experts).__name__}"
        )


def rows_of(experts: "Experts", sample: Sample, *, layers: int | None) -> "Rows":
    """Returns the routed experts of each token of a sample, except the last. `layers` is needed if
    the engine did not report it. Raises `NotTrainable` if some are missing."""
    name = f"task {sample.task!r}, sample {sample.sample}"
    rows = experts.get((sample.trajectory, sample.branch))
    wanted = len(sample.token_ids) - 1
    if rows is None or len(rows) < wanted:
        raise NotTrainable(
            f"{name}: its routed experts are not recorded for all of its tokens (a reply at its "
            "deadline, or one whose connection broke after its last token, has none): leave the "
            "sample out, or convert without experts"
        )
    if rows.ndim == 2:
        if not layers or rows.shape[1] % layers:
            raise UsageError(
                f"{name}: its engine gave {rows.shape[1]} routed experts for each token, and did "
                "not say of how many layers: give layers="
            )
        rows = rows.reshape(len(rows), layers, -1)
    return rows[:wanted]
