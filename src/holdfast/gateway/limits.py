"""What a client may cost the gateway before it is sent away, and what it is told of it."""

from msgspec import Struct

SERVER = "holdfast"
"""All that a client is told of what answers it."""


class GatewayLimits(Struct, frozen=True):
    """Each holds for one connection; nobody else waits for it."""

    body: int = 64 * 1024 * 1024
    """Bytes of a request, after decompression."""
    body_seconds: float = 60.0
    """For the whole body to come."""
    headers: int = 128
    header_bytes: int = 16 * 1024
    """Of one header, or of the request line."""
    idle_seconds: float = 120.0
    """For the next request's headers to come whole; then the connection is closed."""
    write_seconds: float = 60.0
    """For the client to take what lies in the write buffer, which a write fills up to 64 KiB."""
    ping_seconds: float = 10.0
    """Between two keep-alives of a stream that waits for its answer."""
    drain_seconds: float = 10.0
    """For calls that are under way when the gateway is closed."""
    stream_tokens: int = 16
    """Of a streamed reply, tokens that are made durable and told together; 0: it is told whole."""
    stream_seconds: float = 0.5
    """After which fewer are told, where tokens come slowly."""


Limits = GatewayLimits
"""The older name."""
