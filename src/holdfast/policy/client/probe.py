"""Whether an endpoint that answers can also sample."""

import re
from array import array
from collections.abc import Awaitable, Callable

import aiohttp
import msgspec

from holdfast.policy.dialects.dialect import UNREADABLE, Dialect, one_try
from holdfast.policy.policy import Request
from holdfast.records.encoding.redaction import redact
from holdfast.records.errors import (
    BadRequest,
    EngineUnavailable,
    HoldfastError,
    PolicyRefused,
    Truncated,
)
from holdfast.records.message import user
from holdfast.records.sampling import Sampling

UNREACHABLE = (OSError, aiohttp.ClientError, HoldfastError, *UNREADABLE)


def describe_error(error: BaseException) -> str:
    message = redact(str(error)) or type(error).__name__
    # aiohttp names its certificate settings, also for plain http.
    return (
        message.replace(" ssl:default ", " ") if isinstance(error, aiohttp.ClientError) else message
    )


_STARTED = re.compile(rb"^process_start_time_seconds (\S+)", re.MULTILINE)


async def find_incarnation(send: "Send", version_path: str) -> str:
    """What an engine says of its present start: an id (`holdfast serve`), or the time of it (vLLM's
    metrics). "" where it has no such route. Raises the errors of `UNREACHABLE` but for that."""
    fields = msgspec.json.decode(await _read(send, version_path) or b"null")
    if isinstance(fields, dict) and isinstance(found := fields.get("incarnation"), str):
        return found
    started = _STARTED.search(await _read(send, "/metrics"))
    return "" if started is None else started[1].decode()


async def _read(send: "Send", path: str) -> bytes:
    try:
        return await send("GET", path)
    except (PolicyRefused, BadRequest):
        return b""


Send = Callable[[str, str], Awaitable[bytes]]
Post = Callable[[str, str, object], Awaitable[bytes]]


async def find_sampling_fault(post: Post, dialect: Dialect, model: str) -> str | None:
    """Samples one token. Returns the reason of a failure; None if it works. An endpoint that is
    slow or rejects the request works."""
    prompt = array("i", [1])
    request = Request(prompt, Sampling(1), None, "trial", messages=(user("Hello."),))
    try:
        await post("POST", dialect.path, dialect.body(one_try(request, model, max_tokens=1)))
    except (TimeoutError, BadRequest, Truncated, PolicyRefused):
        return None
    except UNREACHABLE as error:
        is_busy = isinstance(error, EngineUnavailable) and error.is_busy
        return None if is_busy else describe_error(error)
    return None
