"""What breaks outside is infrastructure, whichever client says so; a wrong request is code."""

import http.client
import io
import socket
import ssl
import urllib.error
from email.message import Message

import aiohttp
import anthropic
import httpx
import openai
import pytest
import requests
import urllib3
from yarl import URL

from holdfast.records.errors import Cause
from holdfast.records.failure import classify

REQUEST = httpx.Request("POST", "http://127.0.0.1:1/v1/chat/completions")


def of_httpx(status: int) -> httpx.HTTPStatusError:
    response = httpx.Response(status, request=REQUEST)
    return httpx.HTTPStatusError("said no", request=REQUEST, response=response)


def of_openai(status: int) -> openai.APIStatusError:
    kind = {400: openai.BadRequestError, 429: openai.RateLimitError}
    response = httpx.Response(status, request=REQUEST)
    return kind.get(status, openai.InternalServerError)("no", response=response, body=None)


def of_requests(status: int) -> requests.HTTPError:
    response = requests.Response()
    response.status_code = status
    return requests.HTTPError("said no", response=response)


def of_aiohttp(status: int) -> aiohttp.ClientResponseError:
    url = URL("http://127.0.0.1:1")
    info = aiohttp.RequestInfo(url, "GET", {}, url)  # type: ignore[arg-type]
    return aiohttp.ClientResponseError(info, (), status=status)


def of_urllib(status: int) -> urllib.error.HTTPError:
    return urllib.error.HTTPError("http://127.0.0.1:1", status, "no", Message(), io.BytesIO())


class Litellm(openai.APIConnectionError):
    """Other libraries derive from these."""


BROKE_OUTSIDE = [
    ConnectionResetError("reset by peer"),
    BrokenPipeError(),
    TimeoutError("too late"),
    OSError(28, "No space left on device"),
    socket.gaierror(-2, "Name or service not known"),
    ssl.SSLCertVerificationError("expired"),
    http.client.BadStatusLine("mumble"),
    urllib.error.URLError("refused"),
    of_urllib(502),
    aiohttp.ServerDisconnectedError(),
    aiohttp.ClientPayloadError("cut"),
    of_aiohttp(503),
    httpx.ConnectError("refused"),
    httpx.ReadTimeout("late"),
    httpx.RemoteProtocolError("cut"),
    of_httpx(503),
    of_httpx(404),
    requests.ConnectionError("refused"),
    requests.Timeout("late"),
    of_requests(500),
    urllib3.exceptions.ReadTimeoutError(None, "/", "late"),  # type: ignore[arg-type]
    openai.APIConnectionError(request=REQUEST),
    openai.APITimeoutError(REQUEST),
    of_openai(429),
    of_openai(500),
    anthropic.APIConnectionError(request=REQUEST),
    Litellm(request=REQUEST),
]
WRONG_CODE = [
    FileNotFoundError(2, "No such file or directory"),
    PermissionError(13, "Permission denied"),
    IsADirectoryError(),
    NotADirectoryError(),
    FileExistsError(),
    io.UnsupportedOperation("not writable"),
    aiohttp.InvalidURL("::"),
    httpx.UnsupportedProtocol("htp://"),
    requests.exceptions.MissingSchema("no http"),
    of_httpx(400),
    of_httpx(422),
    of_openai(400),
    of_requests(400),
    of_aiohttp(400),
    of_urllib(400),
    KeyError("choices"),
    ValueError("no number"),
]


def named(error: object) -> str:
    return f"{type(error).__module__}.{type(error).__name__}"


@pytest.mark.parametrize("error", BROKE_OUTSIDE, ids=named)
def test_what_broke_outside_is_infrastructure_and_tried_again(error: BaseException) -> None:
    assert classify(error) == (Cause.INFRASTRUCTURE, True)


@pytest.mark.parametrize("error", WRONG_CODE, ids=named)
def test_a_wrong_path_or_request_is_a_bug_in_the_code(error: BaseException) -> None:
    assert classify(error) == (Cause.CODE, True)
