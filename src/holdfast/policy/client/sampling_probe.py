"""Asks an engine whether it takes a run's sampling, before the run is recorded.

Which members of an `extra_body` an engine knows, and how large its vocabulary is, only the engine
can say. So it is sent a request like those of the run, which is ended as soon as it is taken. Chat
APIs are not asked: there nothing is ended that early, and it is paid for.
"""

from array import array

from msgspec import structs

from holdfast.policy.client.endpoint import Endpoint
from holdfast.policy.dialects.dialect import SampleRequest
from holdfast.policy.policy import Request
from holdfast.records.errors import BadRequest, PolicyError, Truncated, Unsupported
from holdfast.records.sampling import Sampling

_ONLY_THE_ENGINE_KNOWS = ("extra_body", "logit_bias", "stop_token_ids")
_PLAIN = Sampling()
_PROMPT = array("i", [1])


async def check_taken(sampling: Sampling, endpoint: Endpoint) -> None:
    """Raises `Unsupported`, with the parameter and the engine by name, for what it refuses. An
    engine that does not answer now refuses nothing: the first replies find out."""
    if not endpoint.dialect.has_tokens:
        return
    for name in _ONLY_THE_ENGINE_KNOWS:
        if getattr(sampling, name) != getattr(_PLAIN, name):
            # One at a time, so that it is known which one is refused.
            others = {other: getattr(_PLAIN, other) for other in _ONLY_THE_ENGINE_KNOWS}
            alone = structs.replace(sampling, **others | {name: getattr(sampling, name)})
            await _ask(name, alone, endpoint)


async def _ask(name: str, sampling: Sampling, endpoint: Endpoint) -> None:
    stops = sampling.stop_token_ids
    request = Request(_PROMPT, sampling, 0, "holdfast-sampling-check", stop_token_ids=stops)
    longest = endpoint.described.max_model_len or sampling.max_tokens + 1
    # No fewer tokens than the run asks for: some parameters are bounded by them (`min_tokens`).
    tokens = max(1, min(sampling.max_tokens, longest - 1))
    attempt = SampleRequest(request, endpoint.model_name, _PROMPT, tokens, 0, stream=True)
    try:
        await endpoint.check_taken(attempt)
    except BadRequest as error:
        engine = endpoint.name if endpoint.takes_json else "the embedded engine"
        said = error.said.removeprefix("the engine ").replace("\n", " ")
        raise Unsupported(
            name,
            f"{name} is refused by {engine}: it {said}; change it, or leave it out",
            why=f"{name}: {error.said}",
        ) from error
    except (PolicyError, Truncated):
        return
