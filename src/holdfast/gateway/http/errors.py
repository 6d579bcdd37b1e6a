"""Builds responses to requests that are not served: 400, 401, 404, 405, and all others."""

from collections.abc import Iterable, Sequence

from aiohttp import web

from holdfast.gateway.http.request import ELSEWHERE, ELSEWHERE_HEADER, RequestContext
from holdfast.gateway.protocol.messages import RequestRejected
from holdfast.records.encoding.redaction import redact

RETRY_AFTER_SECONDS = "1"
"""The value of the `Retry-After` header, which the client libraries of the providers obey."""


class WrongMethod(RequestRejected):
    def __init__(self, methods: Sequence[str]):
        super().__init__(405, f"this address takes {' and '.join(methods)}")
        self.methods = methods


def unknown_route(path: str, routes: Iterable[str]) -> RequestRejected:
    """Returns the rejection of an unknown path. It names the route that was probably meant, because
    a base URL often has a `/v1` too many or too few."""
    known = [route.rstrip("/") for route in routes]
    meant = [route for route in known if path.rstrip("/").endswith(route.removeprefix("/v1"))]
    message = f"there is nothing at {redact(path)[:200]!r}"
    if not meant:
        calls = [route for route in known if route.startswith("/v1")]
        message += f"; calls are made at {', '.join(calls)}"
    else:
        best = max(meant, key=len)
        message += f"; it is {best}"
        if best.startswith("/v1"):
            message += (
                ": a base URL ends with /v1 for OpenAI clients, and without it for Anthropic's"
            )
    return RequestRejected(404, message, code="not_found")


def invalid_key(key: str) -> RequestRejected:
    """Returns the rejection of a call without a key, or with a key that was not made here."""
    message = (
        "no such key: send the trajectory's (`key` in the answer of /trajectories; OPENAI_API_KEY "
        "or ANTHROPIC_API_KEY where the run starts the agent)"
    )
    if not key:
        message = (
            "no key: send the trajectory's, as `Authorization: Bearer KEY` or `x-api-key: KEY`"
        )
    return RequestRejected(401, message, code="invalid_api_key")


def several_keys() -> RequestRejected:
    message = (
        "two keys in one request, and they are those of different attempts: send one of them, in "
        "the address, as `Authorization: Bearer KEY` or as `x-api-key: KEY`"
    )
    return RequestRejected(400, message, code="several_keys")


async def send_rejection(context: RequestContext, rejection: RequestRejected) -> web.StreamResponse:
    headers = {}
    if isinstance(rejection, WrongMethod):
        headers["Allow"] = ", ".join(rejection.methods)
    if rejection.code == "attempt_over":
        # The client libraries would repeat a 409, but this one is final.
        headers["x-should-retry"] = "false"
    if rejection.status == 503:
        headers["Retry-After"] = RETRY_AFTER_SECONDS
    if rejection.code == ELSEWHERE:
        headers[ELSEWHERE_HEADER] = "1"
    close = rejection.status in (408, 413, 503) and not context.is_inside
    body = context.format_error(rejection)
    return await context.send(body, rejection.status, headers=headers, close=close)
