"""WeightGate: sends calls only to replicas whose weights are recorded as checked, and drops tokens
that other weights may have sampled.

Any process that sends weights records them (`ReplicaWeights`). A call begins at a replica whose
newest record is checked and belongs to the engine's present incarnation (its last start). The
tokens of the call count if every later record that may apply to them is checked, too. If a replica
has other weights than its record says, the gate notes that weights are wanted, which wakes the
sender.
"""

import time
from collections.abc import Sequence
from typing import Protocol

from holdfast.journal.changes import POLL_SECONDS, Changes
from holdfast.policy.client.endpoint import Endpoint
from holdfast.policy.client.probe import UNREACHABLE, describe_error
from holdfast.records.errors import WaitTimedOut, WeightsDoubted
from holdfast.records.samples.replica_weights import (
    ReplicaWeights,
    WeightState,
    is_undecided,
    why_not_counted,
)
from holdfast.records.step import VersionSource, VersionSpan

DECISION_SECONDS = 600.0
"""How long a finished reply waits until the weights that sampled it are checked or refused."""
UNSENT = "it was sent no weights yet"
ASSUMED = "its weights changed during the reply, and it does not say which of them sampled a token"


class WeightRecords(Protocol):
    """The records of the weights that the replicas of a run have."""

    @property
    def changes(self) -> Changes: ...

    async def read(self) -> Sequence[ReplicaWeights]:
        """Returns all records that are kept. The records of each replica are in order."""
        ...

    async def note(self, record: ReplicaWeights) -> bool:
        """Writes the next record of a replica, or replaces the last one. Returns False, and writes
        nothing, if another process has written later records."""
        ...


class WeightGate:
    """The gate of one policy. `is_sender` says that this process itself sends the weights, and
    so knows when they change. `patience` is how many seconds a call waits for a replica with
    weights."""

    def __init__(self, records: WeightRecords, *, patience: float, is_sender: bool = False):
        self.records = records
        self._patience = patience
        self._is_sender = is_sender
        self._shut_before = self._shut_since = 0.0

    # --- before a try

    async def wait(self, endpoints: Sequence[Endpoint]) -> list[Endpoint]:
        """Returns the endpoints that may be called, as soon as there is one. Returns an empty list
        after a while, so that the caller can check which replicas are up. Raises `WaitTimedOut` if
        no endpoint could be called for longer than the patience."""
        seen = self.records.changes.count
        admitted, reasons = await self._admitted(endpoints)
        if admitted or not endpoints:
            self._open()
            return admitted
        self._shut()
        if (waited := self.seconds_shut_now) > self._patience:
            raise WaitTimedOut(
                f"waited {waited:.0f} s for weights ({'; '.join(reasons)}): the training's trainer "
                "owes them; start it again with the same command"
            )
        await self.records.changes.wait(seen, timeout=POLL_SECONDS)
        return []

    async def _admitted(self, endpoints: Sequence[Endpoint]) -> tuple[list[Endpoint], list[str]]:
        records = await self.records.read()
        admitted, reasons = [], []
        for endpoint in endpoints:
            why = await self._why_shut(endpoint, records_of(records, endpoint))
            if why:
                reasons.append(f"{endpoint.name}: {why}")
            else:
                admitted.append(endpoint)
        return admitted, reasons

    async def _why_shut(self, endpoint: Endpoint, records: Sequence[ReplicaWeights]) -> str:
        if not records:
            return UNSENT
        newest = records[-1]
        if not newest.is_checked:
            return newest.why or f"its weights {newest.version!r} are {newest.state}"
        if not (endpoint.is_known and newest.is_of(endpoint.incarnation)):
            # The record may be newer than the known incarnation.
            try:
                await endpoint.ask_incarnation()
            except UNREACHABLE as error:
                endpoint.breaker.trip()
                return describe_error(error)
        if not newest.is_of(endpoint.incarnation):
            why = "it was started anew, and was sent no weights since"
            await self.want(newest, endpoint.incarnation, why)
            return why
        endpoint.has(newest)
        return ""

    async def want(self, newest: ReplicaWeights, incarnation: str, why: str) -> None:
        """Notes that the weights of a replica are unknown and have to be sent."""
        wanted = ReplicaWeights(
            newest.replica,
            WeightState.WANTED,
            incarnation,
            newest.version,
            newest.model,
            why,
            newest.number + 1,
        )
        await self.records.note(wanted)

    # --- after a try

    async def check(
        self, endpoint: Endpoint, began: ReplicaWeights, spans: Sequence[VersionSpan]
    ) -> None:
        """Raises `WeightsDoubted` unless it is certain that checked weights sampled the tokens of
        `spans`. `began` is the record by which the try was admitted. Waits until weights that are
        being sent are checked or refused."""
        records = await self._decided(endpoint, began)
        if why := self._why_doubted(endpoint, records, spans):
            if records and records[-1].is_checked and len(records) == 1:
                await self.want(records[-1], endpoint.incarnation, why)
            raise WeightsDoubted(f"{endpoint.name}: {why}")

    async def counts_now(
        self, endpoint: Endpoint, began: ReplicaWeights, spans: Sequence[VersionSpan]
    ) -> bool:
        """Returns whether it is certain already that checked weights sampled the tokens of a
        running try."""
        records = await self._since(endpoint, began)
        return not is_undecided(records) and not self._why_doubted(endpoint, records, spans)

    def _why_doubted(
        self,
        endpoint: Endpoint,
        records: Sequence[ReplicaWeights],
        spans: Sequence[VersionSpan],
    ) -> str:
        is_guess = any(span.source is VersionSource.ASSUMED for span in spans)
        if is_guess and len(records) > 1 and not self._is_sender:
            return ASSUMED
        return why_not_counted(spans, records, endpoint.incarnation)

    async def _decided(self, endpoint: Endpoint, began: ReplicaWeights) -> Sequence[ReplicaWeights]:
        deadline = time.monotonic() + DECISION_SECONDS
        while True:
            seen = self.records.changes.count
            records = await self._since(endpoint, began)
            if not is_undecided(records) or time.monotonic() > deadline:
                return records
            await self.records.changes.wait(seen, timeout=POLL_SECONDS)

    async def _since(self, endpoint: Endpoint, began: ReplicaWeights) -> list[ReplicaWeights]:
        records = records_of(await self.records.read(), endpoint)
        return [record for record in records if record.number >= began.number]

    # --- a replica that is back

    async def look_again(self, endpoint: Endpoint, names: Sequence[str]) -> None:
        """Checks a replica that answers again. If it reports other weights than its record, notes
        that weights are wanted. `names` are the models that it serves."""
        await endpoint.ask_incarnation()
        records = records_of(await self.records.read(), endpoint)
        if not records or not (newest := records[-1]).is_checked:
            return
        why = ""
        if newest.model not in ("", endpoint.model):
            if newest.model not in names:
                why = f"it no longer has {newest.model!r}"
        elif (version := await endpoint.version()) not in (None, newest.version):
            why = f"it came back with weights {version!r}"
        if why:
            await self.want(newest, endpoint.incarnation, why)

    # --- how long it was shut

    def _shut(self) -> None:
        if not self._shut_since:
            self._shut_since = time.monotonic()

    def _open(self) -> None:
        self._shut_before, self._shut_since = self.seconds_shut, 0.0

    @property
    def seconds_shut_now(self) -> float:
        if not self._shut_since:
            return 0.0
        return time.monotonic() - self._shut_since

    @property
    def seconds_shut(self) -> float:
        """Returns the total time for which calls waited for weights."""
        return self._shut_before + self.seconds_shut_now


def records_of(records: Sequence[ReplicaWeights], endpoint: Endpoint) -> list[ReplicaWeights]:
    return [record for record in records if record.replica == endpoint.url]
