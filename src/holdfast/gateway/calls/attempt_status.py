"""Standing: what the journal says of a trajectory that is not open here, or not yet.

A key says which attempt it belongs to, and each attempt is durable before its key is told: so the
record alone decides whether a key is that of the last attempt, also after every process that made
keys is gone.
"""

from msgspec import Struct

from holdfast.gateway.protocol.keys import Bearer
from holdfast.journal.journal import Journal
from holdfast.records.history import History
from holdfast.records.run import Run
from holdfast.records.step import Generated


class AttemptStatus(Struct, frozen=True):
    attempts: int
    last_failed: bool
    finished: bool
    reward: float | None = None

    def is_over(self, bearer: Bearer) -> bool:
        """Whether the attempt of this key can never go on."""
        return self.finished or not self.is_last(bearer)

    def is_last(self, bearer: Bearer) -> bool:
        """Whether the key is that of the last attempt, and nothing ended it but its success."""
        return bearer.attempt == self.attempts and not self.last_failed


def standing_of(history: History) -> AttemptStatus:
    attempts = len(history.attempts)
    finished = history.finished
    return AttemptStatus(
        attempts=attempts,
        last_failed=any(failure.attempt == attempts for failure in history.failures),
        finished=finished is not None,
        reward=None if finished is None else finished.reward,
    )


def asked_in(history: History) -> list[str]:
    """The steps that the last attempt is taken to have asked for: its own, and of those that it was
    given back all but the ones that it left, by asking something else in their place."""
    left = {
        step.base
        for path, step in history.steps.items()
        if isinstance(step, Generated) and path not in history.inherited and step.base
    }
    gone: set[str] = set()
    for path, step in history.steps.items():
        base = step.base if isinstance(step, Generated) else ""
        if path in history.inherited and (base in gone or base in left):
            gone.add(path)
    return [path for path in history.steps if path not in gone]


class Register:
    """Looks trajectories of one run up. Meant for what happens seldom: it reads whole logs."""

    def __init__(self, journal: Journal, run: Run):
        self._journal = journal
        self._run = run

    async def standing(self, trajectory: str) -> AttemptStatus | None:
        """None for one that is not of this run."""
        for row in await self._journal.trajectories(self._run):
            if str(row.key) == trajectory:
                return standing_of(History(await self._journal.history(row.id)))
        return None
