"""What the journal says of an attempt whose trajectory is not open here, or not yet.

A key names its attempt, and each attempt is durable before its key is sent: so the record alone
decides whether a key is that of the last attempt, also after every process that made keys is gone.
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


def status_of(history: History) -> AttemptStatus:
    attempts = len(history.attempts)
    finished = history.finished
    return AttemptStatus(
        attempts=attempts,
        last_failed=any(failure.attempt == attempts for failure in history.failures),
        finished=finished is not None,
        reward=None if finished is None else finished.reward,
    )


def steps_of_last_attempt(history: History) -> list[str]:
    """The steps that the last attempt is taken to have requested: its own, and the replayed ones
    except those that it replaced, by a different request at their position."""
    replaced = {
        step.base
        for path, step in history.steps.items()
        if isinstance(step, Generated) and path not in history.inherited and step.base
    }
    gone: set[str] = set()
    for path, step in history.steps.items():
        base = step.base if isinstance(step, Generated) else ""
        if path in history.inherited and (base in gone or base in replaced):
            gone.add(path)
    return [path for path in history.steps if path not in gone]


class AttemptLookup:
    """Looks up trajectories of one run. Meant for rare cases: it reads whole logs."""

    def __init__(self, journal: Journal, run: Run):
        self._journal = journal
        self._run = run

    async def status(self, trajectory: str) -> AttemptStatus | None:
        """None for a trajectory that is not of this run."""
        for row in await self._journal.trajectories(self._run):
            if str(row.key) == trajectory:
                return status_of(History(await self._journal.history(row.id)))
        return None
