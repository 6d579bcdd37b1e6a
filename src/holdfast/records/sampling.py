"""Sampling: how tokens are drawn."""

from msgspec import Struct

from holdfast.records.errors import UsageError


class Sampling(Struct, frozen=True, omit_defaults=True, gc=False):
    """How tokens are drawn. Part of a step's fingerprint: another value is another step."""

    max_tokens: int = 1024
    temperature: float = 1.0
    top_p: float = 1.0
    stop: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.max_tokens < 1:
            raise UsageError(f"max_tokens must be 1 or more, not {self.max_tokens}")
        if not self.temperature >= 0:
            raise UsageError(f"temperature must be 0 or more, not {self.temperature}")
        if not 0 < self.top_p <= 1:
            raise UsageError(f"top_p must be above 0 and at most 1, not {self.top_p}")
