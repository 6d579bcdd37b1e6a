"""Answers that are wrong on purpose, on any wire: an answer to another request, and spoiled
pieces."""

from collections.abc import Callable

from msgspec.structs import replace

from holdfast.engine_api import errors
from holdfast.testing.fake_engine.faults import Fault, FaultKind
from holdfast.testing.fake_engine.generation import FakePiece
from holdfast.testing.fake_engine.request import FakeRequest
from holdfast.testing.fake_engine.tokens import VOCABULARY

_NOT_A_LOGPROB = -123456.5

STATUSES = {
    FaultKind.RATE_LIMIT: errors.EngineRequestRejected(
        429, "Too many requests", kind="TooManyRequestsError"
    ),
    FaultKind.ERROR_500: errors.engine_failed(),
    FaultKind.UNAVAILABLE: errors.unavailable("The engine is not available"),
}
INTERRUPTIONS = frozenset(
    {
        FaultKind.ABORT,
        FaultKind.STREAM_CUT,
        FaultKind.STREAM_ERROR,
        FaultKind.STREAM_END,
        FaultKind.STREAM_STALL,
    }
)
"""Faults that stop a generation in the middle, so that later tokens are never drawn."""


def moment(fault: Fault, tokens: int) -> int:
    """Returns the number of tokens before the fault. At least one token of the right answer comes
    after it."""
    tokens_before = max(1, tokens // 2) if fault.after is None else fault.after
    return min(tokens_before, tokens - 1)


def actual_request(job: FakeRequest, fault: Fault | None) -> FakeRequest:
    """Returns the request that the engine really works on. A fault may replace the request."""
    if fault is None or fault.kind not in _LIES:
        return job
    return _LIES[fault.kind](job)


def reported_request(job: FakeRequest, fault: Fault | None) -> FakeRequest:
    """Returns the request that the whole answer reports. A fault may replace the request."""
    if fault is not None and fault.kind == FaultKind.WRONG_PROMPT:
        return replace(job, prompt=[(job.prompt[0] + 1) % VOCABULARY, *job.prompt[1:]])
    return job


def spoil(
    job: FakeRequest, piece: FakePiece, kind: FaultKind
) -> tuple[FakeRequest, list[FakePiece]]:
    """Returns what is sent in place of `piece` because of a fault of this `kind`."""
    if kind == FaultKind.WRONG_MODEL:
        return replace(job, model=f"not-{job.model}"), [piece]
    if kind == FaultKind.MISSING_IDS:
        return replace(job, token_ids=False, hide_ids=True), [piece]
    if kind == FaultKind.DUPLICATE_CHUNK:
        return job, [piece, piece]
    return job, [_SPOILERS[kind](job, piece) if kind in _SPOILERS else piece]


def spoil_bytes(data: bytes, kind: FaultKind) -> bytes:
    if kind == FaultKind.MALFORMED_JSON:
        return data[: len(data) // 2]
    # msgspec never writes NaN, but engines use the json module, which does.
    return data.replace(b"%.1f" % _NOT_A_LOGPROB, b"NaN")


def join_pieces(pieces: list[FakePiece]) -> FakePiece:
    """Joins the pieces into one piece, for an answer without chunks."""
    first, *rest = pieces
    for piece in rest:
        first = replace(
            first,
            ids=first.ids + piece.ids,
            scored=first.scored + piece.scored,
            logprobs=first.logprobs + piece.logprobs,
        )
    return first


def _overlong(job: FakeRequest, piece: FakePiece) -> FakePiece:
    more = job.limits.max_tokens + 1 - len(piece.ids)
    ids = piece.ids + piece.ids[-1:] * more
    return replace(piece, ids=ids, scored=ids, logprobs=piece.logprobs + piece.logprobs[-1:] * more)


_LIES: dict[FaultKind, Callable[[FakeRequest], FakeRequest]] = {
    FaultKind.ANOTHER_PROMPT: lambda job: replace(job, prompt=[*job.prompt, 32]),
    FaultKind.ANOTHER_MODEL: lambda job: replace(
        job, model=f"not-{job.model}", seed=job.seed_or_random + 1
    ),
}
_SPOILERS: dict[FaultKind, Callable[[FakeRequest, FakePiece], FakePiece]] = {
    FaultKind.LENGTH_MISMATCH: lambda job, piece: replace(piece, logprobs=piece.logprobs[:-1]),
    FaultKind.NAN_LOGPROB: lambda job, piece: replace(
        piece, logprobs=[*piece.logprobs[:-1], _NOT_A_LOGPROB]
    ),
    FaultKind.EMPTY_DELTA: lambda job, piece: replace(piece, text=""),
    FaultKind.OVERLONG: _overlong,
    FaultKind.WRONG_IDS: lambda job, piece: replace(
        piece, ids=[*piece.ids[:-1], (piece.ids[-1] + 1) % VOCABULARY]
    ),
}
