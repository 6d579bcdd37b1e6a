"""Faults of the fake engine, as values.

A plan is a sequence of faults. Whether a fault hits a request depends only on the request's
`X-Request-Id` and on how many requests had this id before, never on timing or on other requests. So
a run with the same ids meets the same faults.
"""

from collections import Counter
from collections.abc import Sequence
from enum import StrEnum
from hashlib import blake2b

from msgspec import Struct


class FaultKind(StrEnum):
    """The kinds of faults. A fault happens instead of the work, after the work, or in the middle of
    the work. In a stream, a fault that spoils tokens spoils one chunk."""

    RATE_LIMIT = "rate_limit"
    """429, with Retry-After if the fault has one."""
    ERROR_500 = "error_500"
    UNAVAILABLE = "unavailable"
    """503, with Retry-After if the fault has one."""
    CONTEXT_OVERFLOW = "context_overflow"
    """400, as after a prompt that is too long."""
    RESET_BEFORE = "reset_before"
    HANG = "hang"
    """No answer for `seconds` (0 means as long as the client waits), then a TCP reset."""

    SLOW = "slow"
    """The right answer, but `seconds` later."""
    HOLD = "hold"
    """The right answer, stopped after its first tokens until `FakeEngine.release`, or for
    `seconds`. With it, a test can act in the middle of a generation at any machine load."""
    RESET_AFTER = "reset_after"
    """The tokens are sampled and counted, but the answer is lost."""
    MALFORMED_JSON = "malformed_json"
    TRUNCATED_BODY = "truncated_body"
    """The connection closes before Content-Length bytes were sent."""
    MISSING_IDS = "missing_ids"
    LENGTH_MISMATCH = "length_mismatch"
    """The answer has one logprob less than it has tokens."""
    NAN_LOGPROB = "nan_logprob"
    WRONG_MODEL = "wrong_model"
    ABORT = "abort"
    """200 with `finish_reason` "abort" and the first tokens, as vLLM does when it is paused."""
    ERROR_200 = "error_200"
    """200 with an `{"error": …}` body, instead of the work."""

    STREAM_CUT = "stream_cut"
    """The connection is reset after the first tokens."""
    STREAM_ERROR = "stream_error"
    """An error event inside the stream of status 200, then `[DONE]`, as vLLM sends when its worker
    dies. Without a stream, the answer has status 500, as with vLLM."""
    STREAM_END = "stream_end"
    """The stream ends regularly, but without a finish_reason and without `[DONE]`. Without a
    stream, the answer has no finish_reason."""
    STREAM_STALL = "stream_stall"
    """Nothing more comes after the first tokens, for `seconds` (0: as long as the client waits).
    Then the connection is reset."""
    EMPTY_DELTA = "empty_delta"
    """A chunk with token ids but without text. The missing text is never sent."""
    DUPLICATE_CHUNK = "duplicate_chunk"
    """A chunk is sent twice. Without a stream, the last tokens are repeated."""
    OVERLONG = "overlong"
    """The answer has more token ids than `max_tokens`."""
    WRONG_IDS = "wrong_ids"
    """The token ids differ from the ids of the logprobs, if the wire has both."""
    WRONG_PROMPT = "wrong_prompt"
    """The right tokens, but `prompt_token_ids` differs from the prompt that was sent, if the wire
    has this field."""
    ANOTHER_PROMPT = "another_prompt"
    """A wrong answer: its tokens are sampled from another, longer prompt, which the answer also
    reports."""
    ANOTHER_MODEL = "another_model"
    """A wrong answer: its tokens are sampled by another model, and the whole answer names that
    model."""


HARMLESS = frozenset({FaultKind.SLOW, FaultKind.HOLD, FaultKind.EMPTY_DELTA})
"""Faults with which the token ids and logprobs of the answer are still right."""


class Fault(Struct, frozen=True):
    """One fault. It hits requests whose id contains `matching`."""

    kind: FaultKind
    matching: str = ""
    times: int = 1
    """How many tries of each request id are hit, beginning with the first. 0 means all tries."""
    rate: float = 1.0
    """The share of request ids that are hit. A hash of the id decides."""
    seconds: float = 0.0
    retry_after: float | None = None
    after: int | None = None
    """The number of tokens before a fault in the middle of an answer; None means half of the
    tokens. If the answer is too short, the fault replaces its last token, so that the fault always
    happens."""
    skip: int = 0
    """How many tries of each request id are not hit, beginning with the first."""
    path: str = ""
    """A text in a path. The fault hits only endpoints whose path contains this text."""


class FaultPlan:
    """Chooses the fault for each request, and counts how often each request id met each fault."""

    def __init__(self, faults: Sequence[Fault] = ()):
        self._faults = tuple(faults)
        self._tries: Counter[tuple[int, str]] = Counter()

    def strike(self, request_id: str, path: str = "") -> Fault | None:
        """Returns the first fault that hits this request, and counts its use. Returns None if no
        fault hits the request."""
        for index, fault in enumerate(self._faults):
            if fault.path not in path or not _concerns(fault, index, request_id):
                continue
            if self._has_left(fault, index, request_id):
                return fault
        return None

    def _has_left(self, fault: Fault, index: int, request_id: str) -> bool:
        if not fault.times and not fault.skip:
            return True
        self._tries[index, request_id] += 1
        tries = self._tries[index, request_id] - fault.skip
        return tries > 0 and (not fault.times or tries <= fault.times)


def _concerns(fault: Fault, index: int, request_id: str) -> bool:
    if fault.matching not in request_id:
        return False
    # The index makes the faults of a plan independent of each other.
    return fault.rate >= 1 or _uniform(f"{index}/{request_id}") < fault.rate


def _uniform(text: str) -> float:
    digest = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64
