"""The rules within one trajectory's log, from its checksums to its meaning.

The check reads the records in order and folds them as every reader does (`records.history`). It
stops reading a log at the first bad record, because nothing after it is used. It collects all other
faults.
"""

import math
from collections.abc import Callable, Iterable, Iterator

from msgspec import Struct

from holdfast.journal.damage.report import Finding
from holdfast.journal.entries import BadRecord
from holdfast.journal.rows import contradictions, has_other_summary
from holdfast.journal.sql.logs import check_row
from holdfast.journal.sql.store import LogRow
from holdfast.records.encoding.tokens import count, unpack_logprobs
from holdfast.records.history import History, joined
from holdfast.records.step import (
    AttemptStarted,
    Drafted,
    EnvironmentStepped,
    Generated,
    Record,
    Scored,
    Snapshotted,
    ToolIntent,
    ToolResult,
)

_CUT = "repair the journal: the log is cut to its last good record and goes on from there"
_RELINK = "repair the journal: the links are made anew from the records, nothing is cut"
_DO_AGAIN = "nothing: the environment comes back from an earlier one, by doing more again"
_STATE = "repair the journal: its status and its summary are taken from its log"
_REPORT = "please report it, with the journal: no fault of a disk explains it"


class TrajectoryState(Struct, frozen=True):
    """The state of a trajectory according to the trajectory's own row."""

    id: int
    name: str
    status: int
    settled: bool
    epoch: int
    summary: object
    """The stored summary of a settled trajectory."""


class LogCheck:
    """One pass over one log, for any database."""

    def __init__(self, state: TrajectoryState, has_blob: Callable[[bytes], bool]):
        self.state = state
        self.positions: list[int] = []
        self.torn = False
        """Whether a record was bad, so that no later record was read."""
        self._has_blob = has_blob
        self._history = History()
        self._lengths: dict[str, int] = {}
        """The length of each generation's stream."""

    def findings(self, rows: Iterable[LogRow]) -> Iterator[Finding]:
        epoch = 0
        for expected, row in enumerate(rows):
            self.positions.append(row[0])
            if self.torn:
                continue  # Counted, but not read: see above.
            try:
                record = check_row(self.state.id, expected, row)
            except BadRecord as bad:
                self.torn = True
                yield self.finding(f"record {bad.seq} (position {bad.position})", bad.reason, _CUT)
                continue
            before, epoch = epoch, row[2]
            for what in (*self._wrong_epoch(epoch, before), *self._wrong_with(record)):
                yield self.finding(f"record {row[1]} (position {row[0]})", what, _REPORT)
            if isinstance(record, Snapshotted) and self._is_missing(record.snapshot):
                what = f"needs blob {record.snapshot.hex()[:12]}, which is not there"
                yield self.finding(f"record {row[1]} (position {row[0]})", what, _DO_AGAIN)
            self._history.take(record)
        if not self.torn:
            state = self.state
            for what in contradictions(self._history, state.status, settled=state.settled):
                yield self.finding("", what, _STATE)
            if state.settled and has_other_summary(self._history, state.summary, state.id):
                yield self.finding("", "has a summary that does not follow from its log", _STATE)

    def wrong_head(self, counted: int, *, is_linked: bool) -> Iterator[Finding]:
        """Yields a finding if the log's head is wrong. `counted` is the number of records according
        to the head."""
        there = len(self.positions)
        if counted > there:
            what = f"has {there} records, but its head counts {counted}: the last ones are lost"
            yield self.finding("", what, _CUT)
        elif counted != there or not is_linked:
            yield self.finding("", f"has links that do not lead to its {there} records", _RELINK)

    def finding(self, where: str, what: str, remedy: str) -> Finding:
        name = self.state.name
        return Finding(f"{name}, {where}" if where else name, what, remedy)

    def _wrong_epoch(self, epoch: int, before: int) -> Iterator[str]:
        if epoch < before:
            yield f"was written under epoch {epoch}, after one of epoch {before}"
        if epoch > self.state.epoch:
            yield f"was written under epoch {epoch}; the trajectory is at {self.state.epoch}"

    def _wrong_with(self, record: Record) -> Iterator[str]:
        history = self._history
        match record:
            case Generated():
                yield from self._wrong_generation(record)
            case Drafted():
                yield from self._wrong_draft(record)
            case ToolResult() if not isinstance(history.steps.get(record.path), ToolIntent):
                yield f"is the result of step {record.path}, which has no intent"
            case AttemptStarted() if record.attempt != len(history.attempts) + 1:
                yield f"starts attempt {record.attempt} after {len(history.attempts)} others"
            case Scored() if history.finished is None:
                yield "scores a trajectory that has not finished"
            case EnvironmentStepped() if self._is_missing(record.snapshot):
                yield f"needs blob {record.snapshot.hex()[:12]}, which is not there"

    def _is_missing(self, digest: bytes) -> bool:
        return bool(digest) and not self._has_blob(digest)

    def _wrong_draft(self, record: Drafted) -> Iterator[str]:
        draft = self._history.drafts.get(record.path)
        known = draft is not None and draft.fingerprint == record.fingerprint
        there = count(draft.ids) if known and draft is not None else 0
        if record.start > there:
            yield f"drafts tokens from {record.start} on; {there} are recorded"
        if len(record.ids) % 4 or len(record.ids) != len(record.logprobs):
            yield "drafts tokens and logprobs that do not belong together"

    def _wrong_generation(self, record: Generated) -> Iterator[str]:
        draft = self._history.drafts.get(record.path)
        if record.drafted > (count(draft.ids) if draft else 0):
            yield f"begins with {record.drafted} drafted tokens, which are not recorded"
        step = joined(record, draft)
        yield from wrong_tokens(step)
        for path in step.sources:
            if not isinstance(self._history.steps.get(path), Generated):
                yield f"continues step {path}, which is not an earlier generation"
        length = self._lengths.get(step.base, 0) if step.base else 0
        if not 0 <= step.keep <= length:
            yield f"keeps {step.keep} tokens of a stream of {length}"
        self._lengths[step.path] = step.keep + count(step.delta) + count(step.ids)


def wrong_tokens(step: Generated) -> Iterator[str]:
    """Yields each fault of a generation that can be seen without other records."""
    if any(len(packed) % 4 for packed in (step.delta, step.ids, step.logprobs)):
        yield "has token arrays of a broken length"
        return
    tokens = count(step.ids)
    if not tokens and step.trainable:
        yield "is a generation without tokens"
    if count(step.logprobs) != tokens:
        yield f"has {tokens} tokens and {count(step.logprobs)} logprobs"
    if not all(map(math.isfinite, unpack_logprobs(step.logprobs))):
        yield "has a logprob that is not finite"
    if not _covers(step, tokens):
        yield f"has version spans that do not cover its {tokens} tokens exactly"


def _covers(step: Generated, tokens: int) -> bool:
    """Returns whether the spans cover the tokens from first to last without gaps."""
    end = 0
    for span in step.versions:
        if span.start != end or span.end <= span.start:
            return False
        end = span.end
    return end == tokens
