"""A judge's connection: opened when it is needed, and its engine waited for."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from holdfast.engine.connect import Connection
from holdfast.engine.judging.connection import JudgeConnection
from holdfast.records.errors import EndpointDown, PolicyRefused, WaitTimedOut
from support.rollout.renderers import BeginsEmpty
from support.rollout.stage import Oracle


class Engine:
    """Answers after so many refusals."""

    def __init__(self, refusals: float = 0, *, is_refused: bool = False):
        self.refusals = refusals
        self.is_refused = is_refused
        self.opened = self.closed = 0

    @asynccontextmanager
    async def open(self, patience: float):
        await asyncio.sleep(0)
        if self.refusals > 0:
            self.refusals -= 1
            raise EndpointDown("the policy at … does not answer") from OSError("refused")
        if self.is_refused:
            raise PolicyRefused("401: it does not take the key")
        self.opened += 1
        yield Connection(Oracle(), BeginsEmpty())
        self.closed += 1


def connection_to(engine: Engine) -> JudgeConnection:
    return JudgeConnection("http://judge", engine.open)


async def test_it_is_opened_once_for_all_that_need_it_at_once() -> None:
    engine = Engine()
    connection = connection_to(engine)
    results = await asyncio.gather(*(connection.get(9.0) for _ in range(4)))
    assert len({id(each) for each in results}) == 1
    await connection.aclose()
    assert (engine.opened, engine.closed) == (1, 1)


async def test_an_engine_that_is_down_is_waited_for_and_the_time_is_counted(caplog) -> None:
    connection = connection_to(Engine(refusals=2))
    assert connection.seconds_down == 0
    await connection.get(900.0)
    assert connection.seconds_down > 0
    await connection.aclose()
    messages = [record.getMessage() for record in caplog.records]
    assert messages == [
        "http://judge is down (refused); waiting for it",
        "http://judge is back",
    ]


async def test_those_that_wait_together_fail_together_when_patience_is_over() -> None:
    engine = Engine(refusals=float("inf"))
    connection = connection_to(engine)
    waiting = (connection.get(0.0) for _ in range(4))
    errors = await asyncio.gather(*waiting, return_exceptions=True)
    assert {type(error) for error in errors} == {WaitTimedOut}
    (text,) = {str(error) for error in errors}
    assert text.startswith("http://judge has been down for ")
    # Who comes later has patience of its own.
    engine.refusals = 0
    await connection.get(0.0)
    await connection.aclose()


async def test_an_engine_that_refuses_is_not_waited_for() -> None:
    with pytest.raises(PolicyRefused, match="401"):
        await connection_to(Engine(is_refused=True)).get(900.0)
    with pytest.raises(PolicyRefused, match="401"):
        await connection_to(Engine(refusals=2, is_refused=True)).get(900.0)
