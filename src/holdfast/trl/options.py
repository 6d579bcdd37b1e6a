"""What a user says about the rollouts, for either of TRL's trainers."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from holdfast.engine.arguments import engine_urls
from holdfast.engine.connect import EngineAddress
from holdfast.engine.running.run_plan import NO_CODE, Fingerprint, RunPlan, plan_run
from holdfast.engine.scoring.scorer import GroupScorer, PointScorer, Scorer
from holdfast.engine.settings import Settings
from holdfast.records.errors import UsageError
from holdfast.records.group import GroupPolicy
from holdfast.records.sampling import Sampling
from holdfast.rollout.processors.processor import (
    RolloutProcessor,
    as_processor,
    fingerprinted,
)
from holdfast.trl.rows import sampling_of


class TrlOptions(Struct, frozen=True, kw_only=True):
    """Checked; nothing is opened."""

    processor: RolloutProcessor
    code: Fingerprint
    scorer: PointScorer | GroupScorer | None
    journal: Path | str
    run: str
    address: EngineAddress
    sampling: Sampling | None
    group: GroupPolicy | None
    settings: Settings | None
    out: Path | None
    log_requests: bool
    report: Callable[[str], None]

    def plan(self, args: Any, name: str, samples: int) -> RunPlan:
        """The run that TRL's arguments ask for. Raises `UsageError` where nothing will have a
        reward."""
        plan = plan_run(
            name,
            tasks=(),
            processor=self.processor,
            rollout=self.code,
            scorer=None if self.scorer is None else Scorer(self.scorer),
            scorer_code=NO_CODE if self.scorer is None else fingerprinted(self.scorer),
            samples=samples,
            sampling=sampling_of(args, self.sampling),
            seed=args.seed,
            group=self.group,
            settings=self.settings,
        )
        plan.check_rewarded()
        return plan

    def folder(self, args: Any) -> Path:
        """For weights on their way, and the engine's log."""
        return self.out or Path(args.output_dir) / "holdfast"


def options_of(
    rollout: object,
    scorer: PointScorer | GroupScorer | None,
    *,
    journal: Path | str,
    run: str,
    policy: str | Sequence[str],
    api_key: str | None,
    sampling: Sampling | None,
    group: GroupPolicy | None,
    settings: Settings | None,
    out: Path | str | None,
    log_requests: bool,
    report: Callable[[str], None],
) -> TrlOptions:
    """Raises `UsageError` for what is none."""
    if not isinstance(journal, Path | str):
        raise UsageError(f"journal is the path of a file, not {journal!r:.100}")
    if scorer is not None and not callable(scorer):
        raise UsageError(f"scorer is a function of one argument, not {scorer!r:.100}")
    return TrlOptions(
        processor=as_processor(rollout),
        code=fingerprinted(rollout),
        scorer=scorer,
        journal=journal,
        run=run,
        address=EngineAddress(urls=_urls(policy), api_key=api_key, is_trained=True),
        sampling=sampling,
        group=group,
        settings=settings,
        out=None if out is None else Path(out),
        log_requests=log_requests,
        report=report,
    )


def _urls(policy: object) -> tuple[str, ...]:
    """None for the embedded engine."""
    return () if isinstance(policy, list | tuple) and not policy else engine_urls(policy)
