"""Refusing: how a request that is not served is told so."""

from collections.abc import Sequence

from aiohttp import web

from holdfast.gateway.exchange import Refused
from holdfast.gateway.relay import ELSEWHERE, ELSEWHERE_HEADER
from holdfast.gateway.visit import Visit

RETRY_AFTER = "1"
"""Seconds; the published libraries obey it."""


class WrongMethod(Refused):
    def __init__(self, methods: Sequence[str]):
        super().__init__(405, f"this address takes {' and '.join(methods)}")
        self.methods = methods


async def refuse(visit: Visit, refused: Refused) -> web.StreamResponse:
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
    return await visit.telling.whole(body, refused.status, headers=headers, close=close)
