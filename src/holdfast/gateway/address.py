"""The address at which the gateway listens, and the URL that agents get."""

import asyncio
import ipaddress
import socket
import ssl
from pathlib import Path
from urllib.parse import urlsplit

from msgspec import Struct

from holdfast.addresses import is_loopback
from holdfast.records.encoding.redaction import hide
from holdfast.records.errors import UsageError

MIN_TOKEN_CHARS = 16
BACKLOG = 1024
"""The most connections that wait while all workers are busy or being restarted."""


class Address(Struct, frozen=True):
    """The address at which agents reach the gateway, and how it is protected."""

    host: str = "127.0.0.1"
    port: int = 0
    token: str | None = None
    """The token that requests for trajectories need (as a bearer token). It is required unless
    `host` is loopback."""
    tls: ssl.SSLContext | None = None
    advertise: str | None = None
    """The host, or the whole URL, that agents use. By default, if `host` is not loopback, this is a
    name or an address of this machine that other machines can reach."""
    sock: socket.socket | None = None
    """A socket that already listens. Several workers can share it."""
    path: Path | None = None
    """Where the gateway also listens at a Unix socket, for agents in containers. Whoever can open
    the socket's folder can connect."""


LOOPBACK = Address()
"""An address on this machine's loopback interface, with a free port."""


def check_usable(token: str | None, host: str) -> None:
    if token is None and not is_loopback(host):
        raise UsageError(
            f"a gateway at {host} is seen by others: give it a token (--token-env NAME)"
        )
    if token is not None and (len(token) < MIN_TOKEN_CHARS or not token.isascii()):
        raise UsageError(f"a token has at least {MIN_TOKEN_CHARS} characters, all of them ASCII")
    hide(token)


async def advertised_url(host: str, port: int, *, advertised: str | None, secure: bool) -> str:
    """Returns the URL that agents use. `advertised` is a host or a whole URL."""
    if advertised is not None and "://" in advertised:
        return advertised.rstrip("/")
    name = await asyncio.to_thread(reachable_name, host) if advertised is None else advertised
    if ":" in name:
        name = f"[{name.strip('[]')}]"
    return f"{'https' if secure else 'http'}://{name}:{port}"


def reachable_name(host: str) -> str:
    """Returns the name or address by which other machines reach `host`.

    This is the machine's full name if the name resolves to an address of `host`, or else the
    address itself. If `host` stands for all interfaces (0.0.0.0), the address by which this machine
    reaches other machines is used instead. Raises `UsageError` if there is no such address.
    """
    if is_loopback(host):
        return host
    name = socket.getfqdn()
    addresses = _addresses(name)
    if _is_any(host):
        own = addresses if not any(map(is_loopback, addresses)) else set()
    else:
        own = addresses & _addresses(host)
    if own:
        return name
    if not _is_any(host):
        return host
    if (outward := _outward_address(host)) is not None:
        return outward
    raise UsageError(
        f"the gateway at {host} cannot find out by which address others reach this machine (its "
        f"name, {name!r}, leads back to itself only): set it with --advertise HOST"
    )


def _is_any(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]")).is_unspecified
    except ValueError:
        return False


def _addresses(name: str) -> set[str]:
    try:
        return {str(entry[4][0]) for entry in socket.getaddrinfo(name.strip("[]"), None)}
    except (OSError, UnicodeError):
        return set()


def _outward_address(host: str) -> str | None:
    """Returns the address of the interface that leads to other machines. Sends no data: connecting
    a datagram socket only looks up its route, here to an address that is reserved for
    documentation."""
    family, far = (
        (socket.AF_INET6, "2001:db8::1") if ":" in host else (socket.AF_INET, "198.51.100.1")
    )
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as sock:
            sock.connect((far, 9))
            address = str(sock.getsockname()[0])
    except OSError:
        return None
    return None if is_loopback(address) or _is_any(address) else address


def check_advertised(advertised: str) -> None:
    """Raises `UsageError` unless `advertised` is a host, or an http(s) URL without user, query and
    fragment."""
    if "://" in advertised:
        parts = urlsplit(advertised)
        good = parts.scheme in ("http", "https") and parts.hostname and not parts.query
        good = good and not parts.fragment and parts.username is None
    else:
        good = bool(advertised) and not set(advertised) & set(" /?#@\t\r\n")
    if not good or " " in advertised or not advertised.isprintable():
        raise UsageError(
            f"{advertised[:200]!r} is not an address to advertise: give a host, or http://… or https://…"
        )


def listen(host: str, port: int) -> socket.socket:
    """Returns a socket that listens. Raises `UsageError` if no socket can listen at the address."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        sock = socket.create_server((host.strip("[]"), port), family=family, backlog=BACKLOG)
    except (OSError, OverflowError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UsageError(f"the gateway cannot listen at {host!r}, port {port}: {reason}") from error
    sock.setblocking(False)
    return sock


def tls(certificate: Path, key: Path) -> ssl.SSLContext:
    """Returns the context for https with these two PEM files. Raises `UsageError` if they cannot be
    used."""
    for path, what in ((certificate, "certificate"), (key, "key")):
        try:
            path.read_bytes()
        except OSError as error:
            raise UsageError(f"the {what} {path} cannot be read: {error.strerror}") from error
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # The first check reads only the certificate, so an error of the second one concerns the key.
    try:
        ssl.create_default_context().load_verify_locations(certificate)
    except ssl.SSLError as error:
        raise UsageError(f"{certificate} holds no certificate in PEM") from error
    try:
        context.load_cert_chain(certificate, key, password=_no_password)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            message = f"the key {key} does not belong to the certificate {certificate}"
            raise UsageError(message) from error
        raise UsageError(
            f"{key} holds no key in PEM that can be read without a password"
        ) from error
    return context


def _no_password() -> str:
    """Returns an empty password for an encrypted key. Without it, OpenSSL would prompt at the
    terminal."""
    return ""
