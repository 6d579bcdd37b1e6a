"""Faults of the fake engine, as values.

A plan is a sequence of faults. Whether a request is hit depends only on its `X-Request-Id` and on
how often this id came before, never on timing or on other requests. So a run with the same ids
meets the same faults.
"""

from collections import Counter
from collections.abc import Sequence
from enum import StrEnum
from hashlib import blake2b

from msgspec import Struct


class FaultKind(StrEnum):
    """The kinds of faults: instead of the work, after it, or in the middle of it. In a stream, a
    fault that spoils tokens spoils one chunk."""

    RATE_LIMIT = "rate_limit"
    """429, with Retry-After if the fault has one."""
    ERROR_500 = "error_500"
    UNAVAILABLE = "unavailable"
    """503, with Retry-After if the fault has one."""
    CONTEXT_OVERFLOW = "context_overflow"
    """400, as after a prompt that is too long."""
    RESET_BEFORE = "reset_before"
    HANG = "hang"
    """No answer for `seconds` (0: for as long as the client waits), then a reset."""

    SLOW = "slow"
    """The right answer, `seconds` late."""
    HOLD = "hold"
    """The right answer, held after its first tokens until `FakeEngine.release`, or for `seconds`.
    So a test can act in the middle of a generation, whatever the load."""
    RESET_AFTER = "reset_after"
    """The tokens are sampled and counted, but the answer is lost."""
    MALFORMED_JSON = "malformed_json"
    TRUNCATED_BODY = "truncated_body"
    """The connection closes before Content-Length bytes were sent."""
    MISSING_IDS = "missing_ids"
    LENGTH_MISMATCH = "length_mismatch"
    """One logprob fewer than tokens."""
    NAN_LOGPROB = "nan_logprob"
    WRONG_MODEL = "wrong_model"
    ABORT = "abort"
    """200 with `finish_reason` "abort" and the first tokens, as vLLM does when it is paused."""
    ERROR_200 = "error_200"
    """200 with an `{"error": …}` body, instead of the work."""

    STREAM_CUT = "stream_cut"
    """A reset after the first tokens."""
    STREAM_ERROR = "stream_error"
    """An error event inside the 200 stream, then `[DONE]`, as vLLM sends when its worker dies.
    Without a stream, it is a 500, as with vLLM."""
    STREAM_END = "stream_end"
    """The stream ends in an orderly way, but without a finish_reason and without `[DONE]`. Without
    a stream, the answer has no finish_reason."""
    STREAM_STALL = "stream_stall"
    """Nothing more comes after the first tokens, for `seconds` (0: as long as the client waits).
    Then the connection is reset."""
    EMPTY_DELTA = "empty_delta"
    """A chunk has token ids but no text. Its text is never sent."""
    DUPLICATE_CHUNK = "duplicate_chunk"
    """A chunk is sent twice. Without a stream, the last tokens are repeated."""
    OVERLONG = "overlong"
    """More token ids than `max_tokens`."""
    WRONG_IDS = "wrong_ids"
    """The token ids differ from the ids of the logprobs, if the wire has both."""
    WRONG_PROMPT = "wrong_prompt"
    """The right tokens, but with other `prompt_token_ids` than were sent, if the wire has them."""
    ANOTHER_PROMPT = "another_prompt"
    """A lie: the tokens are sampled from another, longer prompt, which the answer also reports."""
    ANOTHER_MODEL = "another_model"
    """A lie: the tokens are those of another model, which the whole answer names."""


HARMLESS = frozenset({FaultKind.SLOW, FaultKind.HOLD, FaultKind.EMPTY_DELTA})
"""Faults after which the ids and the logprobs are right."""


class Fault(Struct, frozen=True):
    """One fault, for requests with `matching` in their id."""

    kind: FaultKind
    matching: str = ""
    times: int = 1
    """The number of first tries of each request id that are hit; 0 hits all tries."""
    rate: float = 1.0
    """The share of request ids that are hit, by a hash of the id."""
    seconds: float = 0.0
    retry_after: float | None = None
    after: int | None = None
    """The number of tokens before a fault in the middle; None means half of the answer. The fault
    replaces the last token at the latest, so that it always happens."""
    skip: int = 0
    """The number of first tries of each request id that are spared."""
    path: str = ""
    """The fault hits only endpoints with this text in their path."""


class FaultPlan:
    """Decides on the fault of each request, and remembers how often each id was seen."""

    def __init__(self, faults: Sequence[Fault] = ()):
        self._faults = tuple(faults)
        self._tries: Counter[tuple[int, str]] = Counter()

    def strike(self, request_id: str, path: str = "") -> Fault | None:
        """Returns the first fault that matches and is not exhausted for this id, and counts its
        use."""
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
