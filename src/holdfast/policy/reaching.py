"""What can go wrong on the way to an endpoint, and how it is said."""

import aiohttp

from holdfast.policy.dialect import UNREADABLE
from holdfast.records.errors import HoldfastError
from holdfast.records.redaction import redact

UNREACHABLE = (OSError, aiohttp.ClientError, HoldfastError, *UNREADABLE)


def say(error: BaseException) -> str:
    said = redact(str(error)) or type(error).__name__
    # What aiohttp would do about certificates, if there were any.
    return said.replace(" ssl:default ", " ") if isinstance(error, aiohttp.ClientError) else said
