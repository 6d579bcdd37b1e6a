"""Finds out the kind of an engine, its models and its abilities.

A dialect is chosen because the engine gave a good answer in it. It is not enough that the dialect's
path exists, because two versions of an engine may have the same path but different fields. So the
engine samples a token on trial. Other samples measure the distribution of the logprobs if the
engine does not publish it.

An engine that does not answer is asked again, and then counts as down. Only an answer shows what
the engine lacks.
"""

import ssl
from array import array
from collections.abc import Sequence
from functools import partial
from urllib.parse import urlsplit

import aiohttp

from holdfast.policy.client.endpoint import Denied, Endpoint
from holdfast.policy.client.logprobs_probe import measure_logprobs_mode
from holdfast.policy.client.probe import UNREACHABLE, describe_error
from holdfast.policy.dialects import DIALECTS
from holdfast.policy.dialects.dialect import (
    UNREADABLE,
    Dialect,
    EngineError,
    InvalidAnswer,
    Kind,
    Seeds,
    ServedModel,
    one_try,
)
from holdfast.policy.policy import Request
from holdfast.records.errors import (
    BadRequest,
    EndpointDown,
    EngineUnavailable,
    PolicyRefused,
    Truncated,
)
from holdfast.records.samples.logprobs import LogprobsMode
from holdfast.records.sampling import Sampling

FIRST_SAMPLE_SECONDS = 120.0
"""The time limit of a trial. An engine's first tokens after its start may take a minute."""


async def discover(endpoint: Endpoint, dialect: Kind | None) -> None:
    """Finds out the endpoint's dialect, its model's limits and its logprobs mode, and sets them.
    The errors name a remedy."""
    served = await served_models(endpoint)
    described = next((item for item in served if item.id == endpoint.model), None)
    if described is None:
        raise PolicyRefused(
            f"{endpoint.name} does not serve model {endpoint.model!r}; it serves: "
            f"{', '.join(entry.id for entry in served) or 'none'}"
        )
    endpoint.described = described
    if dialect:
        endpoint.dialect = DIALECTS[dialect]
    else:
        endpoint.dialect, endpoint.caveat = await _spoken_by(endpoint)
    described.max_model_len = described.max_model_len or described.context_length
    endpoint.seeds = Seeds(described.seeds) if described.seeds in tuple(Seeds) else Seeds.REQUEST
    await endpoint.dialect.describe(endpoint)
    try:
        endpoint.logprobs_mode = await logprobs_mode_of(
            endpoint, described, seconds=FIRST_SAMPLE_SECONDS
        )
    except EngineUnavailable:  # The first calls will report the outage.
        endpoint.logprobs_mode = LogprobsMode.UNKNOWN


async def logprobs_mode_of(
    endpoint: Endpoint, described: ServedModel, *, seconds: float
) -> LogprobsMode:
    """Returns the mode that the engine publishes, or else measures it with requests of at most
    `seconds` each. Raises `EngineUnavailable` if the engine goes away meanwhile."""
    if not endpoint.dialect.has_tokens:
        return LogprobsMode.UNKNOWN
    if described.logprobs_mode in tuple(LogprobsMode):
        return LogprobsMode(described.logprobs_mode)
    post = partial(endpoint.send, seconds=seconds)
    return await measure_logprobs_mode(post, endpoint.dialect, endpoint.model)


async def served_models(endpoint: Endpoint) -> list[ServedModel]:
    """Returns the engine's models. Raises `PolicyRefused` or `EndpointDown`, with a remedy."""
    try:
        return await endpoint.models()
    except Denied as error:
        if error.status in (401, 403):
            raise  # The error names the remedy for the key.
        raise PolicyRefused(f"{error} — {_about_address(endpoint)}") from error
    except UNREACHABLE as error:
        if _is_plain(error):
            raise PolicyRefused(
                f"{endpoint.name} speaks plain http, not https; give the address as "
                f"http{endpoint.name.removeprefix('https')}"
            ) from error
        if isinstance(error, UNREADABLE):
            raise EndpointDown(
                f"the policy at {endpoint.name} answers what is not a list of models "
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
    """Returns whether a TLS handshake got a plain HTTP answer."""
    return isinstance(error, aiohttp.ClientConnectorSSLError) and (
        isinstance(error.os_error, ssl.SSLError)
        and error.os_error.reason in ("WRONG_VERSION_NUMBER", "HTTP_REQUEST")
    )


async def check_dialect(endpoints: Sequence[Endpoint]) -> None:
    """Raises `PolicyRefused` if an engine does not have the path of the user's dialect. Call it
    after `discover`, for endpoints that are up.

    It sends an empty request, which samples nothing. An engine that has the path rejects the
    request. Other errors are ignored because they come again with the first real request.
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
    named, looks_like = endpoint.dialect.kind, (await _spoken_by(endpoint))[0].kind
    if named is looks_like:
        return (
            f"{error}; it looks like {named.value}, but does not speak it: name another --dialect"
        )
    return (
        f"{endpoint.name} does not speak {named.value}; it looks like {looks_like.value} (leave "
        "--dialect out to have it found)"
    )


# --- trying dialects out

_KNOWN = ("vllm", "holdfast", "sglang")
TRIAL = Request(array("i", [1]), Sampling(1), None, "holdfast-trial")


async def _spoken_by(endpoint: Endpoint) -> tuple[Dialect, str]:
    """Returns the first dialect in which the engine gives a good answer, and a line for people. The
    line says what is lost because better dialects failed, or is "" if nothing is lost."""
    lost: list[str] = []
    for dialect in DIALECTS.values():
        if not await dialect.may_be_spoken_by(endpoint):
            continue
        if (why := await _why_not(endpoint, dialect)) is None:
            if not lost or not _is_known(endpoint):
                return dialect, ""
            return dialect, f"{endpoint.name}: {'; '.join(lost)}; it is spoken to as {dialect.kind}"
        if why:
            lost.append(f"{why}, so it does not give {dialect.offers}")
    raise AssertionError("chat may be spoken by all")


def _is_known(endpoint: Endpoint) -> bool:
    """Returns whether the engine is of a known kind, so that more than a chat API can be
    expected."""
    return endpoint.described.owner in _KNOWN


async def _why_not(endpoint: Endpoint, dialect: Dialect) -> str | None:
    """Returns why the engine's answer in a dialect is not good enough. Returns None if the answer
    is good, and "" if the engine has an optional dialect switched off. An engine that takes too
    long to answer is assumed to speak the dialect, because the engine may be paused."""
    if _publishes_itself(endpoint, dialect):
        return await _why_no_path(endpoint, dialect) if dialect.is_optional else None
    if not dialect.has_tokens:
        return None
    body = dialect.body(one_try(TRIAL, endpoint.model, max_tokens=1))
    try:
        raw = await endpoint.send_patiently(
            "POST", dialect.path, body, seconds=FIRST_SAMPLE_SECONDS
        )
        piece = dialect.whole(raw)
    except (TimeoutError, Truncated):
        return None
    except EndpointDown:
        raise
    except Denied as error:
        if error.status == 401:
            raise
        return "" if dialect.is_optional else f"it has no {dialect.path} ({error.status})"
    except (*UNREACHABLE, InvalidAnswer, EngineError) as error:
        return f"its answer at {dialect.path} is unfit ({describe_error(error)})"
    if piece.ids and piece.logprobs:
        return None
    return f"its answer at {dialect.path} has no ids with logprobs"


async def _why_no_path(endpoint: Endpoint, dialect: Dialect) -> str | None:
    """Sends an empty request to the dialect's path. Returns None if the engine has that path, and
    "" if it does not."""
    try:
        await endpoint.send_patiently("POST", dialect.path, {})
    except (BadRequest, Truncated):
        return None
    except EndpointDown:
        raise
    except UNREACHABLE:
        return ""
    return None


def _publishes_itself(endpoint: Endpoint, dialect: Dialect) -> bool:
    """Returns whether to judge the dialect without a sample. This holds for our own engines, which
    publish what they can do, and for Fireworks, where a sample costs money."""
    described = endpoint.described
    is_ours = described.owner in _KNOWN and described.logprobs_mode is not None
    return is_ours or dialect.kind is Kind.FIREWORKS
