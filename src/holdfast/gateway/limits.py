"""Limits on the resources that a client can use."""

from msgspec import Struct

from holdfast.request_body import MAX_BODY_BYTES

SERVER = "holdfast"
"""The value of the `Server` header, which tells no version."""


class GatewayLimits(Struct, frozen=True):
    """Limits of one connection. Reaching them does not delay other connections."""

    body: int = MAX_BODY_BYTES
    """The most bytes of a request's body, before and after it is unpacked."""
    body_seconds: float = 60.0
    """The most seconds for the whole body to arrive."""
    headers: int = 128
    header_bytes: int = 16 * 1024
    """The most bytes of one header, or of the request line."""
    idle_seconds: float = 120.0
    """The most seconds for the next request's headers to arrive. Then the connection is closed."""
    write_seconds: float = 60.0
    """The most seconds for the client to read the write buffer, which a write fills up to 64
    KiB."""
    ping_seconds: float = 10.0
    """Seconds between two keep-alives of a stream that waits for its answer."""
    drain_seconds: float = 10.0
    """The most seconds for which calls in flight continue when the gateway is closed."""
    stream_tokens: int = 16
    """How many tokens of a streamed reply are made durable and sent together. With 0, the reply is
    sent whole."""
    stream_seconds: float = 0.5
    """Seconds after which the tokens so far are sent, even if they are fewer than
    `stream_tokens`."""
