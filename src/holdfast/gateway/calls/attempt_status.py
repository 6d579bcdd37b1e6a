"""Reads the status of an attempt from the record, and the answers that its agent has received.

A key names its attempt, and each attempt is durable before its key is sent. So the record is enough
to decide whether a key belongs to the last attempt, even after every process that made keys is
gone.

After a restart, an agent that continues gets a recorded answer again only if the record does not
say that the agent received it. If the record says so, the same request counts as a new call. The
record of a call notes that the answer was received. The note is written together with the next
call, or a moment later if there is no next call. No call waits for a note. If a note is lost, the
recorded answer is sent again, and no new answer is sampled.
"""

import asyncio
from collections import defaultdict
from contextlib import suppress

from msgspec import Struct, structs

from holdfast.gateway.protocol.keys import Bearer
from holdfast.journal.sql.journal import Journal
from holdfast.records.errors import HoldfastError
from holdfast.records.history import History
from holdfast.records.run import Run
from holdfast.records.step import Called, Generated
from holdfast.rollout.replay.session import Session


class AttemptStatus(Struct, frozen=True):
    attempts: int
    last_failed: bool
    finished: bool
    reward: float | None = None

    def is_over(self, bearer: Bearer) -> bool:
        """Returns whether the attempt of this key can no longer continue."""
        return self.finished or not self.is_last(bearer)

    def is_last(self, bearer: Bearer) -> bool:
        """Returns whether the key belongs to the last attempt, and that attempt did not fail."""
        return bearer.attempt == self.attempts and not self.last_failed


def attempt_number(session: Session) -> int:
    """Returns the number of the present attempt."""
    return max(1, len(session.history.attempts) + session.log.is_unstarted)


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
    """Returns the steps that the last attempt requested. These are its own steps and the steps that
    it replayed. A replayed step is left out if the attempt replaced it by a different request at
    the same position."""
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
    """Looks up the status of a run's trajectories. It reads whole logs, so use it only in rare
    cases."""

    def __init__(self, journal: Journal, run: Run):
        self._journal = journal
        self._run = run

    async def status(self, trajectory: str) -> AttemptStatus | None:
        """Returns the status of a trajectory, or None if the run has no such trajectory."""
        for row in await self._journal.trajectories(self._run):
            if str(row.key) == trajectory:
                return status_of(History(await self._journal.history(row.id)))
        return None


NOTE_SECONDS = 0.1
"""Seconds after which a note is written if the agent makes no further call. With a call, the note
is written at no extra cost."""


class ReceivedAnswers:
    """Notes which answers the agent of one attempt has received. Close it before the attempt's last
    record is written."""

    def __init__(self, session: Session):
        self._session = session
        self._unwritten: list[tuple[bytes, int]] = []
        """The calls whose notes are not written yet, each as its key and its occurrence."""
        self._timer: asyncio.TimerHandle | None = None
        self._writing: asyncio.Task[None] | None = None
        self._closed = False

    def add(self, call: tuple[bytes, int]) -> None:
        if self._closed:
            return
        self._unwritten.append(call)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(NOTE_SECONDS, self._write)

    def take_records(self) -> tuple[Called, ...]:
        """Returns the unwritten notes and forgets them. The caller has to write them."""
        if not self._unwritten:
            return ()
        calls, attempt = self._session.history.calls, attempt_number(self._session)
        taken = [calls.get(call) for call in self._unwritten]
        self._unwritten = []
        return tuple(
            structs.replace(called, received=attempt)
            for called in taken
            if called is not None and called.received != attempt
        )

    async def aclose(self) -> None:
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._writing is not None:
            await asyncio.wait([self._writing])

    def _write(self) -> None:
        self._timer = None
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(self._append(), name="note received answers")
        else:
            self._timer = asyncio.get_running_loop().call_later(NOTE_SECONDS, self._write)

    async def _append(self) -> None:
        # A finished attempt needs no record. If the journal fails, the next call reports it.
        with suppress(HoldfastError):
            if records := self.take_records():
                await self._session.log.append(*records)


def continued_keys(history: History) -> set[bytes]:
    """Returns the keys of all calls with a reply that a later call continues. If an agent repeats
    one of these calls, it has started over. It then gets all answers again."""
    bases = {step.base for step in history.generations if step.base}
    return {called.key for called in history.calls.values() if bases.intersection(called.choices)}


def received_counts(history: History) -> dict[bytes, int]:
    """Returns, for each key, how many answers in a row the last attempt's agent has received. The
    count begins with the first call with the key, and ends before the first unreceived answer."""
    received: defaultdict[bytes, set[int]] = defaultdict(set)
    for (key, occurrence), called in history.calls.items():
        if called.received == len(history.attempts):
            received[key].add(occurrence)
    return {
        key: next(count for count in range(len(occurrences) + 1) if count not in occurrences)
        for key, occurrences in received.items()
    }
