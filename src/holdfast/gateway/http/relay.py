"""Relays a request that belongs to another worker of the same gateway, its owner.

Bytes pass unchanged, streams piece by piece. When the client disconnects, so does the relay from
the owner. What the owner has sent counts as delivered when the relay reports that it arrived (see
`tickets`).
"""

import asyncio

from aiohttp import ClientPayloadError, ClientResponse, web
from multidict import CIMultiDict

from holdfast.gateway.http.request import TICKET, RequestContext
from holdfast.gateway.limits import GatewayLimits

ELSEWHERE = "elsewhere"
ELSEWHERE_HEADER = "x-holdfast-elsewhere"
"""Of a response between workers: the trajectory was looked for at the wrong one."""
RELAYED = "relayed"
_OF_ONE_HOP = {
    *("connection", "content-encoding", "content-length", "expect", "host", "keep-alive"),
    *("proxy-authenticate", "proxy-authorization", "te", "trailer", "transfer-encoding", "upgrade"),
    *(ELSEWHERE_HEADER, TICKET),
}


def headers_of(context: RequestContext, ticket: str) -> CIMultiDict[str]:
    """Those for the owner. The body was decompressed on its way in."""
    headers = CIMultiDict(
        (name, value)
        for name, value in context.request.headers.items()
        if name.lower() not in _OF_ONE_HOP
    )
    headers[TICKET] = ticket
    return headers


async def relay(
    context: RequestContext, owner: ClientResponse, limits: GatewayLimits
) -> web.StreamResponse:
    """Sends the owner's response. Raises `ConnectionError` when either side disconnects."""
    response = web.StreamResponse(status=owner.status)
    for name, value in owner.headers.items():
        if name.lower() not in (_OF_ONE_HOP - {"content-encoding"}):
            response.headers.add(name, value)
    response.content_length = owner.content_length
    context.response.has_begun, context.response.status = True, owner.status
    context.route = RELAYED
    await response.prepare(context.request)
    try:
        async for piece in owner.content.iter_any():
            await _write(context, response, piece, limits)
    except ClientPayloadError as error:
        raise ConnectionResetError("the owner disconnected within its response") from error
    await _write(context, response, None, limits)
    return response


async def _write(
    context: RequestContext,
    response: web.StreamResponse,
    piece: bytes | None,
    limits: GatewayLimits,
) -> None:
    try:
        async with asyncio.timeout(limits.write_seconds):
            await (response.write_eof() if piece is None else response.write(piece))
    except TimeoutError:
        if context.request.transport is not None:
            context.request.transport.abort()
        raise ConnectionResetError("the client does not read") from None
