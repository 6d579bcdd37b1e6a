"""Limits on the resources that a client can use."""

from msgspec import Struct

from holdfast.request_body import MAX_BODY_BYTES

SERVER = "holdfast"
"""The `Server` header, which says no more."""


class GatewayLimits(Struct, frozen=True):
    """Limits of one connection. Reaching them does not delay other connections."""

    body: int = MAX_BODY_BYTES
    """Bytes of a request, before and after it is unpacked."""
    body_seconds: float = 60.0
    """Seconds for the whole body to arrive."""
    headers: int = 128
    header_bytes: int = 16 * 1024
    """Bytes of one header, or of the request line."""
    idle_seconds: float = 120.0
    """Seconds for the next request's headers to arrive, before the connection is closed."""
    write_seconds: float = 60.0
    """Seconds for the client to read the write buffer, which a write fills up to 64 KiB."""
    ping_seconds: float = 10.0
    """Seconds between two keep-alives of a stream that waits for its answer."""
    drain_seconds: float = 10.0
    """Seconds for calls that are in flight when the gateway is closed."""
    stream_tokens: int = 16
    """Tokens of a streamed reply that are made durable and sent together; 0: it is sent whole."""
    stream_seconds: float = 0.5
    """Seconds after which fewer tokens are sent, if they come slowly."""
