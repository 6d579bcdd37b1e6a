"""Relay: a request that belongs to another worker of the same gateway, answered through it.

Bytes go through as they are, streams piece by piece. A client that goes away takes the way to the
owner with it; and one that goes away after the owner has told everything is told of afterwards, by
the request's ticket, so that the answer counts as heard by nobody.
"""

import asyncio
from collections import OrderedDict

from aiohttp import ClientPayloadError, ClientResponse, web
from multidict import CIMultiDict

from holdfast.gateway.calls.call import Hearing
from holdfast.gateway.calls.tool_calls import ToolHearing
from holdfast.gateway.http.request import TICKET, Visit
from holdfast.gateway.limits import GatewayLimits

ELSEWHERE = "elsewhere"
ELSEWHERE_HEADER = "x-holdfast-elsewhere"
"""Of an answer between workers: the trajectory was looked for at the wrong one."""
RELAYED = "relayed"
KEPT_TICKETS = 4096
_OF_ONE_HOP = {
    "connection",
    "content-encoding",
    "content-length",
    "expect",
    "keep-alive",
    "host",
    "proxy-authenticate",
    "proxy-authorization",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    ELSEWHERE_HEADER,
    TICKET,
}


def headers_of(visit: Visit, ticket: str) -> CIMultiDict[str]:
    """What the owner is sent. The body was unpacked on its way in."""
    sent = CIMultiDict(
        (name, value)
        for name, value in visit.request.headers.items()
        if name.lower() not in _OF_ONE_HOP
    )
    sent[TICKET] = ticket
    return sent


async def relay(visit: Visit, told: ClientResponse, limits: GatewayLimits) -> web.StreamResponse:
    """Tells what the owner tells. Raises `ConnectionError` when either side goes away."""
    response = web.StreamResponse(status=told.status)
    for name, value in told.headers.items():
        if name.lower() not in (_OF_ONE_HOP - {"content-encoding"}):
            response.headers.add(name, value)
    response.content_length = told.content_length
    visit.telling.is_begun, visit.telling.status = True, told.status
    visit.route = RELAYED
    await response.prepare(visit.request)
    try:
        async for piece in told.content.iter_any():
            await _taken(visit, response, piece, limits)
    except ClientPayloadError as error:
        raise ConnectionResetError("the owner went away while it told") from error
    await _taken(visit, response, None, limits)
    return response


async def _taken(
    visit: Visit, response: web.StreamResponse, piece: bytes | None, limits: GatewayLimits
) -> None:
    try:
        async with asyncio.timeout(limits.write_seconds):
            await (response.write_eof() if piece is None else response.write(piece))
    except TimeoutError:
        if visit.request.transport is not None:
            visit.request.transport.abort()
        raise ConnectionResetError("the client does not read") from None


class Tickets:
    """The last calls that were answered through other workers."""

    def __init__(self) -> None:
        self._told: OrderedDict[str, Hearing | ToolHearing | None] = OrderedDict()
        """None: it was reported as missed before it was over here."""

    def put(self, ticket: str, hearing: Hearing | ToolHearing) -> None:
        if ticket in self._told:
            hearing.miss()
            del self._told[ticket]
        else:
            self._keep(ticket, hearing)

    def missed(self, ticket: str) -> None:
        hearing = self._told.pop(ticket, None)
        if hearing is not None:
            hearing.miss()
        else:
            self._keep(ticket, None)

    def _keep(self, ticket: str, hearing: Hearing | ToolHearing | None) -> None:
        self._told[ticket] = hearing
        if len(self._told) > KEPT_TICKETS:
            self._told.popitem(last=False)
