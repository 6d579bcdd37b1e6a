"""Adds a check to vLLM's server: its state is changed only with a token.

vLLM protects `/v1` with its key, but does not protect the routes of its development mode, which
change weights and call code. This middleware runs inside vLLM's server (`--middleware`). Sampling
and reading stay as they are. Everything else needs the token, as with all Holdfast servers.
"""

import hmac
import os
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

TOKEN = "HOLDFAST_ENGINE_TOKEN"  # noqa: S105  # a variable's name
"""The environment variable that holds the token."""
_SAMPLING = ("/v1/", "/inference/v1/generate", "/tokenize", "/detokenize")
_CHANGING = ("lora_adapter", "/cancel")
_REFUSAL = b'{"error": {"message": "this needs the token of the server\'s owner", "code": 403}}'
Message = MutableMapping[str, Any]
App = Callable[
    [Message, Callable[[], Awaitable[Message]], Callable[[Message], Awaitable[None]]], Any
]


class TokenGuard:
    """ASGI middleware that refuses requests without the token."""

    def __init__(self, app: App):
        self._app = app
        self._token = os.environ[TOKEN].encode()

    async def __call__(
        self,
        scope: Message,
        receive: Callable[[], Awaitable[Message]],
        send: Callable[[Message], Awaitable[None]],
    ) -> None:
        if self._is_allowed(scope):
            await self._app(scope, receive, send)
            return
        headers = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": 403, "headers": headers})
        await send({"type": "http.response.body", "body": _REFUSAL})

    def _is_allowed(self, scope: Message) -> bool:
        if scope["type"] != "http" or not needs_token(scope["method"], scope["path"]):
            return True
        return hmac.compare_digest(_sent(scope["headers"]), self._token)


def needs_token(method: str, path: str) -> bool:
    """Returns whether a request needs the token. All requests need it, except those that only
    sample or read."""
    if method in ("GET", "HEAD", "OPTIONS"):
        return False
    return not path.startswith(_SAMPLING) or any(word in path for word in _CHANGING)


def _sent(headers: list[tuple[bytes, bytes]]) -> bytes:
    value = next((value for name, value in headers if name == b"authorization"), b"")
    return value.removeprefix(b"Bearer ")
