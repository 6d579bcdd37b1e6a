"""Errors of Python and of other libraries that say: something outside broke, not this code.

A connection that was lost, a time that ran out, a server that answered 503. Libraries are known by
the names of their error classes, since none of them has to be installed; their subclasses, and
those of other libraries that derive from them, count as well.
"""

_CLIENTS = frozenset(
    {
        ("aiohttp", "ClientError"),
        ("anthropic", "APIError"),
        ("botocore", "BotoCoreError"),
        ("botocore", "ClientError"),
        ("google", "APIError"),
        ("google", "GoogleAPIError"),
        ("grpc", "RpcError"),
        ("http", "HTTPException"),
        ("httpcore", "NetworkError"),
        ("httpcore", "ProtocolError"),
        ("httpcore", "TimeoutException"),
        ("httpx", "HTTPError"),
        ("openai", "APIError"),
        ("pycurl", "error"),
        ("requests", "RequestException"),
        ("urllib3", "HTTPError"),
        ("websockets", "WebSocketException"),
    }
)
"""Of each library, by its top package, the root of what its requests raise."""
_FILES = (
    FileExistsError,
    FileNotFoundError,
    IsADirectoryError,
    NotADirectoryError,
    PermissionError,
)
"""`OSError`s that nearly always are a wrong path in the code, the same at every try."""
_MISTAKES = frozenset({"InvalidURL", "LocalProtocolError", "UnsupportedProtocol"})
"""What clients raise before they send anything: the code asked for something impossible."""
_WRONG_REQUESTS = frozenset({400, 405, 406, 411, 413, 414, 415, 422})
"""The statuses of HTTP that blame the request itself. 401, 403 and 404 may be of the set-up."""


def broke_outside(error: BaseException) -> bool:
    """Whether an error that is none of Holdfast's is one of infrastructure."""
    if isinstance(error, _FILES):
        return False
    if _is(error, "ssl", "SSLError"):  # A `ValueError`, too, where it is about a certificate.
        return True
    if not isinstance(error, OSError) and not _is_of_a_client(error):
        return False
    names = {kind.__name__ for kind in type(error).__mro__}
    if isinstance(error, ValueError | TypeError) or names & _MISTAKES:
        return False
    return _status(error) not in _WRONG_REQUESTS


def _is_of_a_client(error: BaseException) -> bool:
    return any((_package(kind), kind.__name__) in _CLIENTS for kind in type(error).__mro__)


def _is(error: BaseException, package: str, name: str) -> bool:
    return any(_package(kind) == package and kind.__name__ == name for kind in type(error).__mro__)


def _package(kind: type) -> str:
    return kind.__module__.partition(".")[0]


def _status(error: BaseException) -> object:
    """The status that a server answered with, where clients keep it; None where none did."""
    response = getattr(error, "response", None)
    for holder, name in (
        (error, "status_code"),
        (error, "status"),
        (error, "code"),
        (response, "status_code"),
        (response, "status"),
    ):
        found = getattr(holder, name, None)
        if isinstance(found, int):
            return found
    return None
