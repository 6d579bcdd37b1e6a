"""Faults of the fake engine, as values.

A plan is a sequence of faults. Which request is hit depends only on its `X-Request-Id` and on how
often it came before, never on timing or on other requests, so that a run with the same ids meets
the same faults.
"""

from collections import Counter
from collections.abc import Sequence
from enum import StrEnum
from hashlib import blake2b

from msgspec import Struct


class FaultKind(StrEnum):
    """What goes wrong: instead of the work, after it, or in the middle of it.

    What spoils tokens spoils, in a stream, one chunk of it."""

    RATE_LIMIT = "rate_limit"
    """429, with Retry-After if the fault has one."""
    ERROR_500 = "error_500"
    UNAVAILABLE = "unavailable"
    """503, with Retry-After if the fault has one."""
    CONTEXT_OVERFLOW = "context_overflow"
    """400, as for a prompt that is too long."""
    RESET_BEFORE = "reset_before"
    HANG = "hang"
    """No answer for `seconds` (0: for as long as the client waits), then a reset."""

    SLOW = "slow"
    """The right answer, `seconds` later."""
    HOLD = "hold"
    """The right answer, held after its first tokens until `FakeEngine.release`, or for `seconds`:
    what a test does meanwhile happens in the middle of a generation, whatever the load."""
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
    """200 with `finish_reason` "abort" and the first tokens, as vLLM does when it is paused."""
    ERROR_200 = "error_200"
    """200 with an `{"error": …}` body, instead of the work."""

    STREAM_CUT = "stream_cut"
    """A reset after the first tokens."""
    STREAM_ERROR = "stream_error"
    """An error event inside the 200 stream, then `[DONE]`: what vLLM does when its worker dies.

    Without a stream it is a 500, as there."""
    STREAM_END = "stream_end"
    """The stream ends politely, but without a finish_reason and without `[DONE]`.

    Without a stream, the answer has no finish_reason."""
    STREAM_STALL = "stream_stall"
    """Nothing more comes after the first tokens, for `seconds` (0: as long as the client waits);
    then a reset."""
    EMPTY_DELTA = "empty_delta"
    """A chunk without text that carries token ids all the same; its text is never sent."""
    DUPLICATE_CHUNK = "duplicate_chunk"
    """A chunk is sent twice. Without a stream, the last tokens are there twice."""
    OVERLONG = "overlong"
    """More token ids than `max_tokens`."""
    WRONG_IDS = "wrong_ids"
    """The token ids are not those that the logprobs are for, where the wire names both."""
    WRONG_PROMPT = "wrong_prompt"
    """The right tokens, but `prompt_token_ids` that were not sent, where the wire has them."""
    ANOTHER_PROMPT = "another_prompt"
    """A lie: tokens sampled from another, longer prompt; whatever is said of it is the other's."""
    ANOTHER_MODEL = "another_model"
    """A lie: tokens of another model, which the whole answer names."""


HARMLESS = frozenset({FaultKind.SLOW, FaultKind.HOLD, FaultKind.EMPTY_DELTA})
"""After these the ids and the logprobs are right."""


class Fault(Struct, frozen=True):
    """One thing that goes wrong, for requests with `matching` in their id."""

    kind: FaultKind
    matching: str = ""
    times: int = 1
    """How many first tries of each request id are hit; 0: all of them."""
    rate: float = 1.0
    """The share of request ids that are hit, by a hash of the id."""
    seconds: float = 0.0
    retry_after: float | None = None
    after: int | None = None
    """Tokens before it happens, for what happens in the middle; None: half of the answer.

    It happens in place of the last token at the latest, so that it never fails to happen."""
    skip: int = 0
    """How many first tries of each request id are spared."""
    path: str = ""
    """Only for endpoints with this in their path."""


class FaultPlan:
    """Decides for each request; remembers how often each id came by."""

    def __init__(self, faults: Sequence[Fault] = ()):
        self._faults = tuple(faults)
        self._tries: Counter[tuple[int, str]] = Counter()

    def strike(self, request_id: str, path: str = "") -> Fault | None:
        """The first fault that matches and is not exhausted for this id, now used once more."""
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
    # The index keeps two faults of a plan independent of each other.
    return fault.rate >= 1 or _uniform(f"{index}/{request_id}") < fault.rate


def _uniform(text: str) -> float:
    digest = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64
