"""Which answers the agent of an attempt is known to have received.

After a restart, an agent that goes on gets a recorded answer again only while nobody knows that it
has it: asking the same once more is then another call. What is known is noted in the record of the
call: with the next call, or, if none comes, a moment later. Nobody waits for a note. One that is
lost makes an answer come again, never a new one in the place of an answer that was lost.
"""

import asyncio
from collections import defaultdict
from contextlib import suppress

from msgspec import structs

from holdfast.gateway.calls.call import CallId
from holdfast.records.errors import HoldfastError
from holdfast.records.history import History
from holdfast.records.step import Called
from holdfast.rollout.replay.session import Session

NOTE_SECONDS = 0.1
"""After which a note is written by itself: an agent that asks at once has it written with its next
call, for nothing."""


class HeardAnswers:
    """Of one attempt. Close it before the attempt's last record is written."""

    def __init__(self, session: Session):
        self._session = session
        self._unwritten: list[CallId] = []
        self._timer: asyncio.TimerHandle | None = None
        self._writing: asyncio.Task[None] | None = None
        self._closed = False

    def add(self, call: CallId) -> None:
        if self._closed:
            return
        self._unwritten.append(call)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(NOTE_SECONDS, self._write)

    def take_records(self) -> tuple[Called, ...]:
        """The notes that are not written yet; whoever takes them writes them."""
        calls, attempt = self._session.history.calls, self._attempt
        found = [calls.get(call) for call in self._unwritten]
        self._unwritten = []
        return tuple(
            structs.replace(called, heard=attempt)
            for called in found
            if called is not None and called.heard != attempt
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
            self._writing = asyncio.create_task(self._append(), name="note what was heard")
        else:
            self._timer = asyncio.get_running_loop().call_later(NOTE_SECONDS, self._write)

    async def _append(self) -> None:
        # An attempt that is over needs none, and a journal that fails says so to the next call.
        with suppress(HoldfastError):
            if records := self.take_records():
                await self._session.log.append(*records)

    @property
    def _attempt(self) -> int:
        return max(1, len(self._session.history.attempts) + self._session.log.is_unstarted)


def continued_keys(history: History) -> set[bytes]:
    """The keys of calls whose answers a later call goes on from. An agent that asks one of these
    again has begun anew, and hears everything again."""
    bases = {step.base for step in history.generations if step.base}
    return {called.key for called in history.calls.values() if bases.intersection(called.choices)}


def heard_occurrences(history: History) -> dict[bytes, int]:
    """By key, how many of the first calls with it the agent of the last attempt has heard."""
    heard: defaultdict[bytes, set[int]] = defaultdict(set)
    for (key, occurrence), called in history.calls.items():
        if called.heard == len(history.attempts):
            heard[key].add(occurrence)
    return {
        key: next(count for count in range(len(found) + 1) if count not in found)
        for key, found in heard.items()
    }
