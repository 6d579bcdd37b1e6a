"""The kind of an engine, its models and its abilities.

Each kind is recognised by a feature that only it has. Tokens are sampled only to measure what no
engine publishes: the distribution of its logprobs.
"""

import ssl
from collections.abc import Sequence
from functools import partial
from urllib.parse import urlsplit

import aiohttp

from holdfast.policy.client.endpoint import Denied, Endpoint
from holdfast.policy.client.logprobs_probe import measure_logprobs_mode
from holdfast.policy.client.probe import UNREACHABLE, describe_error
from holdfast.policy.dialects import DIALECTS
from holdfast.policy.dialects.dialect import UNREADABLE, Dialect, Kind, Seeds, ServedModel
from holdfast.records.errors import EndpointDown, EngineUnavailable, PolicyRefused
from holdfast.records.samples.logprobs import LogprobsMode

FIRST_SAMPLE_SECONDS = 120.0
"""An engine's first tokens after its start may take a minute."""


async def discover(endpoint: Endpoint, dialect: Kind | None) -> None:
    """Sets the endpoint's dialect and its model's limits. Errors name a remedy."""
    served = await served_models(endpoint)
    described = next((item for item in served if item.id == endpoint.model), None)
    if described is None:
        raise PolicyRefused(
            f"{endpoint.name} does not serve model {endpoint.model!r}; it serves: "
            f"{', '.join(entry.id for entry in served) or 'none'}"
        )
    endpoint.described = described
    endpoint.dialect = DIALECTS[dialect] if dialect else await _spoken_by(endpoint)
    described.max_model_len = described.max_model_len or described.context_length
    endpoint.seeds = Seeds(described.seeds) if described.seeds in tuple(Seeds) else Seeds.REQUEST
    await endpoint.dialect.describe(endpoint)
    try:
        endpoint.logprobs_mode = await logprobs_mode_of(
            endpoint, described, seconds=FIRST_SAMPLE_SECONDS
        )
    except EngineUnavailable:  # Its first calls find out.
        endpoint.logprobs_mode = LogprobsMode.UNKNOWN


async def logprobs_mode_of(
    endpoint: Endpoint, described: ServedModel, *, seconds: float
) -> LogprobsMode:
    """The mode that the engine publishes, else the one that is measured within `seconds`.
    `EngineUnavailable` if the engine goes away meanwhile."""
    if not endpoint.dialect.has_tokens:
        return LogprobsMode.UNKNOWN
    if described.logprobs_mode in tuple(LogprobsMode):
        return LogprobsMode(described.logprobs_mode)
    post = partial(endpoint.send, seconds=seconds)
    return await measure_logprobs_mode(post, endpoint.dialect, endpoint.model)


async def served_models(endpoint: Endpoint) -> list[ServedModel]:
    """The engine's models. Raises `PolicyRefused` or `EndpointDown`, with a remedy."""
    try:
        return await endpoint.models()
    except Denied as error:
        if error.status in (401, 403):
            raise  # It names the remedy for the key.
        raise PolicyRefused(f"{error} — {_about_address(endpoint)}") from error
    except UNREACHABLE as error:
        if _is_plain(error):
            raise PolicyRefused(
                f"{endpoint.name} speaks plain http, not https; give the address as "
                f"http{endpoint.name.removeprefix('https')}"
            ) from error
        if isinstance(error, UNREADABLE):
            raise EndpointDown(
                f"the policy at {endpoint.name} answers what is no list of models "
                f"({describe_error(error)}); {_about_address(endpoint)}"
            ) from error
        raise EndpointDown(
            f"the policy at {endpoint.name} does not answer ({describe_error(error)}); start it, "
            "or correct the address"
        ) from error


def _about_address(endpoint: Endpoint) -> str:
    if path := urlsplit(endpoint.url).path:
        return (
            f"its API is looked for at {path}: give the address of what comes before /models and "
            "/chat/completions, often /v1"
        )
    return "it may be no inference engine; check the address"


def _is_plain(error: BaseException) -> bool:
    """Whether a TLS handshake got a plain answer."""
    return isinstance(error, aiohttp.ClientConnectorSSLError) and (
        isinstance(error.os_error, ssl.SSLError)
        and error.os_error.reason in ("WRONG_VERSION_NUMBER", "HTTP_REQUEST")
    )


async def check_dialect(endpoints: Sequence[Endpoint]) -> None:
    """Raises `PolicyRefused` if an engine does not have the path of the user's dialect. For
    endpoints that are up, after `discover`.

    An empty request samples nothing, and an engine that has the path rejects it. Other errors come
    again with the first real request.
    """
    for endpoint in endpoints:
        try:
            await endpoint.send("POST", endpoint.dialect.path, {"model": endpoint.model})
        except Denied as error:
            if error.status not in endpoint.dialect.no_route:
                raise
            raise PolicyRefused(await _wrong_dialect_message(endpoint, error)) from error
        except UNREACHABLE:
            continue


async def _wrong_dialect_message(endpoint: Endpoint, error: Denied) -> str:
    named, looks_like = endpoint.dialect.kind, (await _spoken_by(endpoint)).kind
    if named is looks_like:
        return (
            f"{error}; it looks like {named.value}, but does not speak it: name another --dialect"
        )
    return (
        f"{endpoint.name} does not speak {named.value}; it looks like {looks_like.value} (leave "
        "--dialect out to have it found)"
    )


async def _spoken_by(endpoint: Endpoint) -> Dialect:
    for dialect in DIALECTS.values():
        if await dialect.is_spoken_by(endpoint):
            break
    return dialect
