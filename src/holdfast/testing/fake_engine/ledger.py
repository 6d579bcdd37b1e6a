"""Records everything that the fake engine has received and done."""

import msgspec

from holdfast.testing.fake_engine.faults import Fault
from holdfast.testing.fake_engine.options import FakeStats, SeenCall
from holdfast.testing.fake_engine.request import FakeRequest

_PROMPTS = frozenset(("prompt", "messages", "token_ids", "input_ids", "text"))
_members = msgspec.json.Decoder(dict[str, msgspec.Raw])


class Ledger:
    def __init__(self) -> None:
        self.in_flight = 0
        self.reset()

    def reset(self) -> None:
        self.stats = FakeStats()
        self.arrivals: list[str] = []
        self.calls: list[SeenCall] = []

    def count_arrival(self, request_id: str, path: str) -> None:
        self.arrivals.append(request_id)
        self.stats.requests += 1
        endpoints = self.stats.endpoints
        endpoints[path] = endpoints.get(path, 0) + 1

    def count_fault(self, fault: Fault) -> None:
        faults = self.stats.faults
        faults[fault.kind] = faults.get(fault.kind, 0) + 1

    def record_call(self, job: FakeRequest, path: str, raw: bytes) -> None:
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
                _parameters(raw),
            )
        )


def _parameters(raw: bytes) -> dict[str, object]:
    """Returns the fields of a request except the prompt, which may be long and is not decoded."""
    members = _members.decode(raw)
    return {
        name: msgspec.json.decode(value) for name, value in members.items() if name not in _PROMPTS
    }
