"""Makes the scorer of a command, in this process or in separate processes."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast import log_files
from holdfast.cli.setup.user_code import load_module
from holdfast.engine.scoring.scorer import Scorer
from holdfast.records.task import Task
from holdfast.tasks.read import place_of

if TYPE_CHECKING:
    from holdfast.engine.scoring.wire import ScorerHome


def make_scorer(
    args: argparse.Namespace, function: object, *, place: tuple[Path, str], tasks: Sequence[Task]
) -> Scorer | None:
    """Makes a scorer of these tasks from `function`, the object with that name in the file. Returns
    None if `function` is None. Raises `UsageError`, which names the file and line of a task, if the
    function cannot score the task."""
    if function is None:
        return None
    columns = dict(args.columns)
    Scorer(function).check_tasks(  # type: ignore[arg-type]
        tasks, where=lambda task: place_of(task, args.tasks, limit=args.limit, columns=columns)
    )
    if not args.score_workers:
        return Scorer(function)  # type: ignore[arg-type]
    from holdfast.engine.scoring.pool import LocalSeat, ScorerPool

    logs = log_files.logs_of(args.run, args.journal)
    return ScorerPool(
        function,  # type: ignore[arg-type]
        scorer_home(*place),
        seats=[LocalSeat(logs) for _ in range(args.score_workers)],
        at_once=args.score_concurrency,
    )


def scorer_home(
    file: Path, name: str, *, place: str | None = None, fingerprint: str = ""
) -> "ScorerHome":
    """Returns the file and the name by which another process finds the scorer. `place` is the path
    of the file where that process runs, if it differs from the path here."""
    from holdfast.engine.scoring.wire import ScorerHome
    from holdfast.rollout.processes.frames import FunctionHome

    home = FunctionHome(load_module(file).__name__, place or str(file.resolve()))
    return ScorerHome(home=home, name=name, fingerprint=fingerprint)
