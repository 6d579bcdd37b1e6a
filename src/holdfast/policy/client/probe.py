"""Checks whether an endpoint answers, and whether it can also sample."""

import re
from array import array
from collections.abc import Awaitable, Callable

import aiohttp
import msgspec

from holdfast.clock import Clock
from holdfast.policy.dialects.dialect import UNREADABLE, Dialect, one_try
from holdfast.policy.policy import Request
from holdfast.records.encoding.redaction import redact
from holdfast.records.errors import (
    BadRequest,
    EndpointDown,
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
    # aiohttp mentions certificate settings even for plain http.
    return (
        message.replace(" ssl:default ", " ") if isinstance(error, aiohttp.ClientError) else message
    )


_QUERY = re.compile(r"(?i)(https?://[^\s?#\"'<>]+)[?#][^\s\"'<>]+")
_DATA = re.compile(r"(?i)data:[a-z0-9.+/;=-]+,[^\s\"'<>]*")
_MAX_MESSAGE_CHARS = 1_000
PAUSES = (0.25, 0.5, 1.0, 2.0)
"""The pauses in seconds before each new request to an engine that did not answer."""


def sanitize(message: str) -> str:
    """Removes secrets from an engine's message. The message may quote an image, or an image's
    address with a signature in its query. A web page is only named."""
    if message.lstrip()[:14].lower().startswith(("<!doctype html", "<html")):
        return "a web page"
    return redact(_DATA.sub("data:…", _QUERY.sub(r"\1?…", message)))[:_MAX_MESSAGE_CHARS]


async def patiently(send: Callable[[], Awaitable[bytes]], *, clock: Clock, where: str) -> bytes:
    """Calls `send` and returns its result. Repeats the call if the engine does not answer, or
    answers with an error of its own (500), as a dying engine does. Raises `EndpointDown` if no
    answer comes at all. Other errors of `send` pass through."""
    for pause in (*PAUSES, None):
        try:
            return await send()
        except UNREACHABLE as error:
            is_silence = _is_silence(error)
            if not (is_silence or isinstance(error, EngineUnavailable)):
                raise
            if pause is None:
                if not is_silence:
                    raise
                raise EndpointDown(
                    f"{where} does not answer ({describe_error(error)}): check its address, start "
                    "it again, or wait until it is ready"
                ) from error
        await clock.sleep(pause)
    raise AssertionError("the last try returns or raises")


def _is_silence(error: BaseException) -> bool:
    """Returns whether the engine itself did not answer. A proxy in front of it may have
    answered."""
    if isinstance(error, EngineUnavailable):
        return error.is_busy or not error.reached
    return isinstance(error, OSError | aiohttp.ClientConnectionError) and not isinstance(
        error, TimeoutError | aiohttp.ClientSSLError
    )


_STARTED = re.compile(rb"^process_start_time_seconds (\S+)", re.MULTILINE)


async def find_incarnation(send: "Send", version_path: str) -> str:
    """Returns the identity of an engine's present start. It is an id (`holdfast serve`), or the
    start time (vLLM's metrics). Returns "" if the engine has no such route. Raises the other errors
    of `UNREACHABLE`."""
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
    """Samples one token. Returns the reason of a failure, or None if sampling works. An endpoint
    that is slow or rejects the request counts as working."""
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
