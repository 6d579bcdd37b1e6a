"""Refuses requests that a web page may have sent, for every HTTP server of ours.

Every page in a browser of this machine can reach the machine's loopback servers. A request is
therefore refused in these cases:

- Its `Origin` is not the server's, or the browser marks the request as cross-site.
- Its `Host` is not a name of this machine, and the server has no token from its user. Without this
  check, a page whose own domain resolves to this machine (DNS rebinding) would count as a page of
  the server.
- Its body is not JSON. Browsers let a page send some other types, such as plain text, to any server
  without asking the server first.
- It has more than one of a header that decides who sent the request or to whom.

The port in `Host` is not checked, because tunnels and containers change it.
"""

from collections.abc import Collection
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from holdfast.addresses import is_loopback

if TYPE_CHECKING:
    from aiohttp import web

JSON = "application/json"
_SINGLE = (
    *("Host", "Origin", "Authorization", "X-Api-Key"),
    *("Content-Type", "Content-Encoding"),
)
_OWN_SITES = ("same-origin", "none")
"""Accepted values of the header `Sec-Fetch-Site`. `none` means that the user typed the address."""


class RequestRefused(Exception):
    def __init__(self, status: int, message: str):
        super().__init__(message)
        self.status = status


def check_request(request: "web.BaseRequest", *, names: Collection[str] | None) -> None:
    """Raises `RequestRefused` for a request that a web page may have sent. `names` are the server's
    names besides the loopback names; None accepts every name."""
    for header in _SINGLE:
        if len(request.headers.getall(header, ())) > 1:
            raise RequestRefused(400, f"the request has more than one header {header}")
    _check_origin(request)
    if names is not None:
        _check_host(request.headers.get("Host", ""), names)
    if request.can_read_body and request.content_type != JSON:
        raise RequestRefused(415, f"send the body with the header `Content-Type: {JSON}`")


def _check_origin(request: "web.BaseRequest") -> None:
    headers = request.headers
    origin = headers.get("Origin")
    is_own = origin is None or urlsplit(origin).netloc == headers.get("Host")
    if not is_own or headers.get("Sec-Fetch-Site", "none") not in _OWN_SITES:
        raise RequestRefused(403, "this server takes no requests from web pages of another origin")


def _check_host(host: str, names: Collection[str]) -> None:
    try:
        name = urlsplit(f"//{host}").hostname
    except ValueError:
        name = host
    if name and not is_loopback(name) and name not in names:
        raise RequestRefused(
            403,
            f"{name[:100]!r} is not a name of this machine: a server without a token of your own "
            "is asked for as 127.0.0.1 or localhost; give it a token, and any name will do",
        )
