"""The messages between a run and the processes of its scorers.

A trajectory travels as the bytes of its records, in the journal's encoding.
"""

import msgspec
from msgspec import Struct

from holdfast.engine.options import PATIENCE
from holdfast.engine.scoring.scorer import Score
from holdfast.records.encoding import codec
from holdfast.records.failure import Failure
from holdfast.records.history import History
from holdfast.records.task import Task
from holdfast.records.trajectory import TrajectoryKey
from holdfast.records.view import TrajectoryView
from holdfast.rollout.processes.frames import FunctionHome

MAX_FRAME = 1024 * 1024 * 1024
_tasks: msgspec.msgpack.Decoder[Task] = msgspec.msgpack.Decoder(Task)


class ScorerHome(Struct, frozen=True, kw_only=True):
    """Where a process finds the scorer."""

    home: FunctionHome
    name: str
    """The function's name in its module. The name of a reward function of verl or TRL begins
    with its framework.
    """
    fingerprint: str = ""
    """The fingerprint of the scorer's code; "" on the same machine, where it cannot differ."""


class EncodedView(Struct, frozen=True, array_like=True):
    """A finished trajectory."""

    key: TrajectoryKey
    task: bytes
    records: list[bytes]

    def decode(self) -> TrajectoryView:
        history = History(codec.decode(record) for record in self.records)
        return TrajectoryView(self.key, _tasks.decode(self.task), history)


class ScoreRequest(Struct, frozen=True):
    number: int
    seconds: float | None
    views: list[EncodedView]
    patience: float = PATIENCE.default
    only_judge: bool = False
    """Whether only the scorer's first judge is asked for. The answer is then a `ScoreResult` with
    `MADE_JUDGE`."""


class ScorerReady(Struct, frozen=True, tag=True):
    """The scorer is loaded."""

    pid: int


class ScorerRefused(Struct, frozen=True, tag=True):
    """The scorer cannot be loaded, or differs from the run's scorer."""

    message: str
    traceback: str = ""


class ScoreResult(Struct, frozen=True, tag=True):
    number: int
    scores: list[Score]


class ScoreFailed(Struct, frozen=True, tag=True):
    """The scorer raised, or took too long."""

    number: int
    failure: Failure
    timed_out: bool = False
    is_unusable: bool = False
    """Whether the scorer asks an engine that cannot be used. The scored trajectory is then not
    to blame.
    """


class ScoreExtended(Struct, frozen=True, tag=True):
    """An engine that the scorer asks was down for `seconds`. They are added to the call's
    deadline."""

    number: int
    seconds: float


class ScorerNotice(Struct, frozen=True, tag=True):
    """A message for people: an engine that the scorer asks is down, or back."""

    line: str


ScorerAnswer = (
    ScorerReady | ScorerRefused | ScoreResult | ScoreFailed | ScoreExtended | ScorerNotice
)
