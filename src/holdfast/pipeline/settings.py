"""The settings say how far rollouts may be ahead of training, and how parts are restarted. The
values are frozen. Needs no torch."""

import math
import sys
from enum import StrEnum

from msgspec import Struct, structs

from holdfast.records.encoding.bounds import check_whole
from holdfast.records.encoding.declared import check_fields
from holdfast.records.errors import UsageError
from holdfast.training.objective.objective import ICEPOP, Unclipped
from holdfast.training.settings import TrainingSettings


class TooOld(StrEnum):
    """What is done with a group whose oldest token was sampled with weights that are too many
    versions old."""

    TRAIN = "train"
    """Trains the group with the correction of the objective, and counts the group."""
    DISMISS = "dismiss"
    """Dismisses the group, counts it and the lengths of its samples, and admits another group."""


class PipelineSettings(Struct, frozen=True, kw_only=True):
    """How far rollouts may be ahead of training. The values may change on a resume."""

    max_staleness: int = 1
    """The largest number of versions by which the weights that train a token may be newer than the
    weights that sampled it."""
    straggler_seconds: float = 600.0
    """How many seconds a step waits for a group that is due, although other groups could fill the
    step."""
    too_old: TooOld = TooOld.TRAIN
    epochs: int | None = None
    """The number of epochs after which the stream ends. None means that it ends with the last
    step."""

    def __post_init__(self) -> None:
        check_fields(self)
        check_whole("max_staleness", self.max_staleness, least=0)
        if not self.straggler_seconds >= 0:
            raise UsageError(f"straggler_seconds={self.straggler_seconds!r} is not 0 or more")
        if self.epochs is not None:
            check_whole("epochs", self.epochs, least=1)

    def window(self, groups: int) -> int:
        """Returns how many groups may be admitted but not yet trained. If they are trained in the
        order of their admission, each of them is trained within the bound."""
        return (self.max_staleness + 1) * groups

    def last_group(self, tasks: int) -> int | None:
        """Returns the number of groups in the whole stream, or None if the number of epochs is not
        limited."""
        return None if self.epochs is None else self.epochs * tasks


class RestartPolicy(Struct, frozen=True, kw_only=True):
    """Decides when a crashed part is started again. The wait grows with each crash. The part
    continues from its durable state."""

    restarts: int = 5
    """The most restarts in any `within` seconds."""
    within: float = 600.0
    delay: float = 0.5
    """The seconds before the first restart."""
    growth: float = 2.0
    longest: float = 30.0

    def __post_init__(self) -> None:
        check_fields(self)
        check_whole("restarts", self.restarts, least=0)
        for name in ("within", "delay", "growth", "longest"):
            value = getattr(self, name)
            if not 0 <= value < math.inf:
                raise UsageError(f"{name}={value!r} of a restart policy is not 0 or more")

    def wait(self, crashes: int) -> float | None:
        """Returns the seconds before the next start. `crashes` counts the crashes in the last
        `within` seconds. Returns None if there is no further start."""
        if crashes > self.restarts:
            return None
        return float(min(self.longest, self.delay * self._grown(max(crashes - 1, 0))))

    def _grown(self, times: int) -> float:
        try:
            return float(float(self.growth) ** times)
        except OverflowError:
            # The result exceeds every wait. It is not infinite, because a delay of 0 would then
            # give NaN.
            return sys.float_info.max


def check_pipeline(pipeline: PipelineSettings, training: TrainingSettings, *, tasks: int) -> None:
    """Raises `UsageError` for a staleness that makes no sense for this training."""
    bound, objective = pipeline.max_staleness, training.trainer.objective
    total = training.trainer.steps * training.groups
    last = pipeline.last_group(tasks)
    total = total if last is None else min(total, last)
    if bound and pipeline.window(training.groups) > total:
        most = max(total // training.groups - 1, 0)
        raise UsageError(
            f"max_staleness={bound} needs {pipeline.window(training.groups)} groups on their way, "
            f"and the whole training has {total}: give at most {most} (--max-staleness), or more "
            "steps"
        )
    if bound and isinstance(objective.clip, Unclipped) and objective.correction is None:
        raise UsageError(
            f"this loss takes the ratio as it is, and needs fresh samples: with max_staleness="
            f"{bound} nothing would bound its weights; use --max-staleness 0, a mask "
            "(--correction mis or icepop), or another loss"
        )


def adapted(
    pipeline: PipelineSettings, training: TrainingSettings, *, tasks: int
) -> PipelineSettings:
    """Returns the settings to use if the user chose no staleness. The staleness becomes 0 if the
    training is too short for it or its loss needs fresh samples."""
    try:
        check_pipeline(pipeline, training, tasks=tasks)
    except UsageError:
        return structs.replace(pipeline, max_staleness=0)
    return pipeline


def corrected(pipeline: PipelineSettings, training: TrainingSettings) -> TrainingSettings:
    """Adds a mask (IcePop) to an objective without a correction if samples may be stale. The mask
    leaves out tokens whose probability has changed much."""
    objective = training.trainer.objective
    if not pipeline.max_staleness or objective.correction is not None or training.loss:
        return training
    objective = structs.replace(objective, correction=ICEPOP)
    return structs.replace(training, trainer=structs.replace(training.trainer, objective=objective))
