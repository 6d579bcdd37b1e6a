"""Stop strings across a seam.

An engine looks for stop strings only in its own sample. When a completion continues from earlier
tokens, it does not see a stop string that begins in those and ends after them.
"""

from holdfast.policy.client.completion_builder import CompletionBuilder
from holdfast.policy.policy import Request


class StopStringSearch:
    """Looks at the first few tokens after a seam."""

    def __init__(self, request: Request, seam: int, reach: int, sampled: CompletionBuilder):
        assert request.decode is not None, "text is needed to find text"
        self._decode = request.decode
        self._stops = request.sampling.stop
        self._reach = reach
        self._seen = seam
        # A character takes at most four tokens, when each is a byte.
        self._start = max(0, seam - 4 * reach)
        # A character that the seam splits counts as before it; its last bytes come after.
        self._text = self._decode(sampled.ids[self._start : seam])
        self._before = len(self._text)
        self._is_watching = True

    @classmethod
    def at_seam(cls, request: Request, sampled: CompletionBuilder) -> "StopStringSearch | None":
        """None if no stop string can lie across a seam."""
        stops = request.sampling.stop
        if not stops or not len(sampled) or request.decode is None:
            return None
        return cls(request, len(sampled), max(map(len, stops)), sampled)

    def found(self, sampled: CompletionBuilder) -> bool:
        """Cuts the completion after the token that completes a stop string, as an engine does."""
        while self._is_watching and self._seen < len(sampled):
            self._seen += 1
            # A partial character at the end may still become another text.
            settled = len(self._text.rstrip("\ufffd"))
            self._text = self._decode(sampled.ids[self._start : self._seen])
            if any(self._ends(stop, after=settled) for stop in self._stops):
                sampled.cut(self._seen)
                sampled.finish_reason = "stop"
                return True
            # A stop string across the seam ends within its own length after it.
            self._is_watching = len(self._text) - self._before < self._reach
        return False

    def _ends(self, stop: str, *, after: int) -> bool:
        """Whether `stop` begins before the seam and ends with what was just added."""
        return -1 < self._text.find(stop, max(0, after - len(stop) + 1)) < self._before
