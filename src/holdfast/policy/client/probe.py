"""A trial: whether an endpoint that answers can sample, too."""

from array import array
from collections.abc import Awaitable, Callable

import aiohttp

from holdfast.policy.dialects.dialect import UNREADABLE, Dialect, SampleRequest
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


def say(error: BaseException) -> str:
    said = redact(str(error)) or type(error).__name__
    # What aiohttp would do about certificates, if there were any.
    return said.replace(" ssl:default ", " ") if isinstance(error, aiohttp.ClientError) else said


Post = Callable[[str, str, object], Awaitable[bytes]]


async def why_it_cannot_sample(post: Post, dialect: Dialect, model: str) -> str | None:
    """Asks for a single token. One that takes its time over it, or objects, is at work."""
    prompt = array("i", [1])
    request = Request(prompt, Sampling(1), None, "trial", messages=(user("Hello."),))
    attempt = SampleRequest(request, model, prompt, max_tokens=1, seed=None, stream=False)
    try:
        await post("POST", dialect.path, dialect.body(attempt))
    except (TimeoutError, BadRequest, Truncated, PolicyRefused):
        return None
    except UNREACHABLE as error:
        is_busy = isinstance(error, EngineUnavailable) and error.is_busy
        return None if is_busy else say(error)
    return None
