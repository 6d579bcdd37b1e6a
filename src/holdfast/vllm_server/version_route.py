"""Names the version of the weights for a vLLM that has no routes for it (0.27 and older).

This middleware runs inside vLLM's server (`--middleware`), and answers the two routes of newer
versions. It lives as long as the server, which ends with its engine. So a restarted server names
the weights of the start, as newer versions do.
"""

import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

ROUTE = "/update_weight_version"
_READ = "/weight_info"
_AT_START = "default"
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


class VersionRoute:
    """ASGI middleware that keeps the name of the version."""

    def __init__(self, app: Callable[[Message, Receive, Send], Any]):
        self._app = app
        self._version = _AT_START

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        request = (scope.get("method"), scope.get("path"))
        if request == ("POST", ROUTE):
            await self._rename(receive, send)
        elif request == ("GET", _READ):
            await _answer(send, 200, {"weight_version": self._version})
        else:
            await self._app(scope, receive, send)

    async def _rename(self, receive: Receive, send: Send) -> None:
        try:
            version = json.loads(await _body(receive))["new_version"]
        except (ValueError, KeyError, TypeError):
            await _answer(send, 400, {"error": {"message": "new_version is missing", "code": 400}})
            return
        self._version = str(version)
        await _answer(send, 200, {"success": True, "weight_version": self._version})


async def _body(receive: Receive) -> bytes:
    parts, is_whole = [], False
    while not is_whole:
        message = await receive()
        parts.append(message.get("body", b""))
        is_whole = not message.get("more_body", False)
    return b"".join(parts)


async def _answer(send: Send, status: int, fields: object) -> None:
    headers = [(b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": json.dumps(fields).encode()})
