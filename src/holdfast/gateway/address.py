"""Where the gateway listens, and what agents are told of it."""

import asyncio
import ipaddress
import socket


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


async def advertised(host: str, port: int, *, given: str | None, secure: bool) -> str:
    """The address that agents use. Beyond loopback a bound address such as 0.0.0.0 is none, so the
    machine's fully qualified name stands for it; `given` is a host or a whole URL."""
    if given is not None and "://" in given:
        return given.rstrip("/")
    name = given or host
    if given is None and not is_loopback(host):
        name = await asyncio.to_thread(socket.getfqdn)
    if ":" in name:
        name = f"[{name.strip('[]')}]"
    return f"{'https' if secure else 'http'}://{name}:{port}"
