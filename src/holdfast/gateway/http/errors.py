"""Refusing: how a request that is not served is told so."""

from collections.abc import Iterable, Sequence

from aiohttp import web

from holdfast.gateway.http.relay import ELSEWHERE, ELSEWHERE_HEADER
from holdfast.gateway.http.request import Visit
from holdfast.gateway.protocol.messages import RequestRejected
from holdfast.records.redaction import redact

RETRY_AFTER = "1"
"""Seconds; the published libraries obey it."""


class WrongMethod(RequestRejected):
    def __init__(self, methods: Sequence[str]):
        super().__init__(405, f"this address takes {' and '.join(methods)}")
        self.methods = methods


def nothing_at(path: str, routes: Iterable[str]) -> RequestRejected:
    """Says what was probably meant: most often the base URL has a `/v1` too many, or too few."""
    known = [one.rstrip("/") for one in routes]
    meant = [one for one in known if path.rstrip("/").endswith(one.removeprefix("/v1"))]
    words = f"there is nothing at {redact(path)[:200]!r}"
    if not meant:
        words += f"; calls are made at {', '.join(one for one in known if one.startswith('/v1'))}"
    else:
        words += f"; it is {max(meant, key=len)}"
        if max(meant, key=len).startswith("/v1"):
            words += ": a base URL ends with /v1 for OpenAI clients, and without it for Anthropic's"
    return RequestRejected(404, words, code="not_found")


def no_key(given: str) -> RequestRejected:
    """For a call that belongs to nobody: no key, or one that was not made here."""
    if not given:
        words = "no key: send the trajectory's, as `Authorization: Bearer KEY` or `x-api-key: KEY`"
        return RequestRejected(401, words, code="invalid_api_key")
    words = (
        "no such key: send the trajectory's (`key` in the answer of /trajectories; OPENAI_API_KEY "
        "or ANTHROPIC_API_KEY where the run starts the agent)"
    )
    return RequestRejected(401, words, code="invalid_api_key")


def several_keys() -> RequestRejected:
    words = (
        "two keys in one request, and they are those of different attempts: send one of them, in "
        "the address, as `Authorization: Bearer KEY` or as `x-api-key: KEY`"
    )
    return RequestRejected(400, words, code="several_keys")


async def refuse(visit: Visit, refused: RequestRejected) -> web.StreamResponse:
    headers = {}
    if isinstance(refused, WrongMethod):
        headers["Allow"] = ", ".join(refused.methods)
    if refused.code == "attempt_over":
        # The libraries try a 409 again, and this one stays what it is.
        headers["x-should-retry"] = "false"
    if refused.status == 503:
        headers["Retry-After"] = RETRY_AFTER
    if refused.code == ELSEWHERE:
        headers[ELSEWHERE_HEADER] = "1"
    close = refused.status in (408, 413, 503) and not visit.is_inside
    body = visit.refusal(refused)
    response = await visit.telling.whole(body, refused.status, headers=headers, close=close)
    request = visit.request
    if "content-encoding" in request.headers and not request.content.is_eof():
        # The rest would be unpacked only to be thrown away, and a little can hold a lot.
        request.protocol.force_close()
    return response
