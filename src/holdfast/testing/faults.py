"""Faults that the fake engine commits on purpose, as values.

A plan is a sequence of faults. Which request is hit depends only on its `X-Request-Id` and on how
often it was hit before, never on timing or on other requests, so that a run with the same ids meets
the same faults.
"""

from collections import Counter
from collections.abc import Sequence
from enum import StrEnum
from hashlib import blake2b

from msgspec import Struct


class FaultKind(StrEnum):
    """What goes wrong. The first ones happen instead of the work, the others after it."""

    RATE_LIMIT = "rate_limit"
    """429, with Retry-After if the fault has one."""
    ERROR_500 = "error_500"
    UNAVAILABLE = "unavailable"
    """503, with Retry-After if the fault has one."""
    CONTEXT_OVERFLOW = "context_overflow"
    """400: the prompt is said to be too long."""
    RESET_BEFORE = "reset_before"
    HANG = "hang"
    """No answer for `seconds` (0: for as long as the client waits), then a reset."""

    SLOW = "slow"
    """The right answer, `seconds` later."""
    RESET_AFTER = "reset_after"
    """The tokens are sampled and counted, and the answer is lost."""
    MALFORMED_JSON = "malformed_json"
    TRUNCATED_BODY = "truncated_body"
    """The connection closes before Content-Length bytes were sent."""
    MISSING_IDS = "missing_ids"
    LENGTH_MISMATCH = "length_mismatch"
    """One logprob fewer than tokens."""
    NAN_LOGPROB = "nan_logprob"
    WRONG_MODEL = "wrong_model"
    ABORT = "abort"
    """200 with `finish_reason` "abort" and half of the tokens, as vLLM does when it is paused."""


class Fault(Struct, frozen=True):
    """One thing that goes wrong, for the requests whose id contains `matching`."""

    kind: FaultKind
    matching: str = ""
    times: int = 1
    """How many first tries of each request id are hit; 0: all of them."""
    rate: float = 1.0
    """The share of request ids that are hit, by a hash of the id."""
    seconds: float = 0.0
    retry_after: float | None = None


class FaultPlan:
    """Decides for each request; remembers how often each id was hit."""

    def __init__(self, faults: Sequence[Fault] = ()):
        self._faults = tuple(faults)
        self._hits: Counter[tuple[int, str]] = Counter()

    def strike(self, request_id: str) -> Fault | None:
        """The first fault that matches and is not exhausted for this id, now used once more."""
        for index, fault in enumerate(self._faults):
            if _concerns(fault, index, request_id) and self._has_left(fault, index, request_id):
                return fault
        return None

    def _has_left(self, fault: Fault, index: int, request_id: str) -> bool:
        if not fault.times:
            return True
        self._hits[index, request_id] += 1
        return self._hits[index, request_id] <= fault.times


def _concerns(fault: Fault, index: int, request_id: str) -> bool:
    if fault.matching not in request_id:
        return False
    # The index keeps two faults of a plan independent of each other.
    return fault.rate >= 1 or _uniform(f"{index}/{request_id}") < fault.rate


def _uniform(text: str) -> float:
    digest = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64
