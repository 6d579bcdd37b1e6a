"""No error of the client holds a secret, whatever the engine says."""

import asyncio
import base64
import traceback
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager

import pytest

from holdfast.policy.client.replicas import EnginePolicy
from holdfast.records.errors import (
    BadRequest,
    EndpointDown,
    HoldfastError,
    PolicyRefused,
    UsageError,
)
from holdfast.testing import FakeEngine, Fault, FaultKind
from holdfast.testing.fake_engine.faults import HARMLESS
from support.policy.fake_engines import QUICK, request, sample

KEY = "correct-horse-battery-staple"


def traceback_of(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))


@pytest.mark.parametrize("kind", [*FaultKind])
def test_the_api_key_is_in_no_error_of_a_faulty_engine(engine: FakeEngine, kind: FaultKind) -> None:
    engine.set_faults(Fault(kind, times=0, seconds=0.01))
    policy = EnginePolicy(engine.url, engine.model, api_key=KEY, retry=QUICK)
    try:
        asyncio.run(sample(policy))
    except HoldfastError as error:
        assert KEY not in traceback_of(error)  # noqa: PT017
    else:
        # This wire does not name the tokens of its logprobs.
        assert kind in {*HARMLESS, FaultKind.WRONG_IDS}


@asynccontextmanager
async def parrot(status: int) -> AsyncIterator[str]:
    """A server that repeats the whole request, credentials included, in its answer."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        data = await reader.readuntil(b"\r\n\r\n")
        head = f"HTTP/1.1 {status} X\r\nContent-Length: {len(data)}\r\nConnection: close\r\n\r\n"
        writer.write(head.encode() + data)
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


@pytest.mark.parametrize("status", [200, 400, 401, 403, 404, 422, 429, 500, 503])
@pytest.mark.parametrize("method", ["sample", "check"])
async def test_the_api_key_is_in_no_error_even_if_the_engine_repeats_it(
    status: int, method: str
) -> None:
    async with parrot(status) as url:
        policy = EnginePolicy(url, "m", api_key=KEY, retry=QUICK, patience=0)
        work: Coroutine[object, object, object]
        work = policy.check() if method == "check" else policy.sample(request())
        with pytest.raises(HoldfastError) as caught:
            await work
        await policy.aclose()
        assert KEY not in traceback_of(caught.value)


@pytest.mark.parametrize("status", [200, 400, 401, 422, 500])
async def test_credentials_of_the_address_are_in_no_error_even_if_the_engine_repeats_them(
    status: int,
) -> None:
    async with parrot(status) as url:
        address = url.replace("//", "//me:hunter22xyz@")
        policy = EnginePolicy(address, "m", retry=QUICK, patience=0)
        with pytest.raises(HoldfastError) as caught:
            await policy.sample(request())
        await policy.aclose()
        for secret in ("hunter22xyz", base64.b64encode(b"me:hunter22xyz").decode()):
            assert secret not in traceback_of(caught.value)


@pytest.mark.parametrize("status", [400, 422])
async def test_what_an_engine_says_of_a_request_can_be_said_without_its_address(
    status: int,
) -> None:
    async with parrot(status) as url:
        policy = EnginePolicy(url, "m", retry=QUICK, patience=0)
        with pytest.raises(BadRequest, match=url) as caught:
            await policy.sample(request())
        await policy.aclose()
        assert url.removeprefix("http://") not in caught.value.reason
        assert f"the engine answered {status}: POST " in caught.value.reason


@pytest.mark.parametrize("status", [401, 403])
async def test_check_says_that_the_key_was_refused(status: int) -> None:
    async with parrot(status) as url:
        with pytest.raises(PolicyRefused, match=str(status)):
            await EnginePolicy(url, "m").check()


def test_credentials_in_the_address_are_not_shown() -> None:
    policy = EnginePolicy("http://me:hunter22@127.0.0.1:1", "m", retry=QUICK, patience=0)
    with pytest.raises(EndpointDown) as nobody:
        asyncio.run(policy.check())
    with pytest.raises(EndpointDown) as down:
        asyncio.run(sample(policy))
    assert "hunter22" not in traceback_of(down.value) + traceback_of(nobody.value)


def test_a_key_with_a_line_break_is_refused_before_any_work() -> None:
    with pytest.raises(UsageError, match="line break") as caught:
        EnginePolicy("http://127.0.0.1:1", "m", api_key=f"{KEY}\n")
    assert KEY not in traceback_of(caught.value)
