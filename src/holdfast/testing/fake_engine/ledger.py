"""What the fake engine has seen and done."""

from holdfast.testing.fake_engine.faults import Fault
from holdfast.testing.fake_engine.options import FakeStats, SeenCall
from holdfast.testing.fake_engine.request import FakeRequest


class Ledger:
    def __init__(self) -> None:
        self.in_flight = 0
        self.reset()

    def reset(self) -> None:
        self._stats = FakeStats()
        self.arrivals: list[str] = []
        self.calls: list[SeenCall] = []

    @property
    def stats(self) -> FakeStats:
        self._stats.in_flight = self.in_flight
        return self._stats

    def count_arrival(self, request_id: str, path: str) -> None:
        self.arrivals.append(request_id)
        self._stats.requests += 1
        endpoints = self._stats.endpoints
        endpoints[path] = endpoints.get(path, 0) + 1

    def count_fault(self, fault: Fault) -> None:
        faults = self._stats.faults
        faults[fault.kind] = faults.get(fault.kind, 0) + 1

    def record_call(self, job: FakeRequest, path: str) -> None:
        prompt, max_tokens = len(job.prompt), job.limits.max_tokens
        self.calls.append(
            SeenCall(
                job.id,
                path,
                prompt,
                max_tokens,
                job.seed,
                job.stream,
                job.schema,
                job.effort,
                job.images,
                job.thinking_token_budget,
            )
        )

    def count_tokens(self, tokens: int) -> None:
        self._stats.tokens += tokens

    def count_completion(self) -> None:
        self._stats.completions += 1

    def count_stream(self) -> None:
        self._stats.streams += 1

    def count_cut_stream(self) -> None:
        self._stats.streams_cut += 1
