"""A session belongs to one loop, and does not outlive it."""

import asyncio

import aiohttp

from holdfast.policy.client.http_sessions import HttpSessions


def test_callers_of_one_loop_share_a_session_and_each_loop_has_its_own() -> None:
    sessions = HttpSessions(aiohttp.ClientSession)

    async def together() -> aiohttp.ClientSession:
        first, second = await asyncio.gather(sessions.get(), sessions.get())
        assert first is second
        return first

    assert asyncio.run(together()) is not asyncio.run(together())


def test_loops_that_are_over_are_forgotten() -> None:
    sessions = HttpSessions(aiohttp.ClientSession)
    for _ in range(5):
        asyncio.run(sessions.get())
    assert len(sessions._by_loop) == 1


def test_a_session_is_closed_with_its_loop() -> None:
    sessions = HttpSessions(aiohttp.ClientSession)
    assert asyncio.run(sessions.get()).closed


def test_after_it_was_closed_there_is_another() -> None:
    async def main() -> None:
        sessions = HttpSessions(aiohttp.ClientSession)
        first = await sessions.get()
        await sessions.aclose()
        await sessions.aclose()
        assert first.closed
        assert not (await sessions.get()).closed

    asyncio.run(main())
