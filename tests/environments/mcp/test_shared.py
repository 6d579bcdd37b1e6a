"""One session of an MCP server for many trajectories."""

import asyncio

import pytest

from holdfast.environments.mcp import McpServer, process
from holdfast.environments.mcp.session import SharedSession
from holdfast.records.errors import EnvironmentBroken
from support.environments.mcp_servers.keeping import call, is_running, others, stdio


async def opened(server: McpServer, count: int):
    environments = [server.environment() for _ in range(count)]
    await asyncio.gather(
        *(environment.reset(seed=index) for index, environment in enumerate(environments))
    )
    return environments


async def test_all_trajectories_speak_to_one_process_which_ends_with_the_last_of_them():
    server = stdio("bare", shared=True)
    environments = await opened(server, 5)
    (pid,) = {int(await call(environment, "pid")) for environment in environments}
    for item in environments[1:]:
        await item.close()
    assert await call(environments[0], "add_one") == "1"
    await environments[0].close()
    assert not is_running(pid)
    assert not others()


async def test_a_process_that_dies_is_started_again_once_for_all_who_call_next():
    async with stdio("toolbox", shared=True) as server:
        environments = await opened(server, 4)
        first = await call(environments[0], "pid")
        slow = asyncio.create_task(call(environments[1], "sleep", seconds=600))
        # One after the other: who was answered came after it.
        assert await call(environments[2], "pid") == first
        with pytest.raises(EnvironmentBroken, match="ended by SIGKILL"):
            await call(environments[0], "die")
        # Whoever was in a call when it died has to be told, too.
        with pytest.raises(EnvironmentBroken, match="was lost while it ran sleep"):
            await slow
        pids = await asyncio.gather(*(call(environment, "pid") for environment in environments))
        assert len(set(pids)) == 1
        assert first not in pids
        for item in environments:
            await item.close()
        # The server itself holds the session.
        assert is_running(int(pids[0]))
    assert not is_running(int(pids[0]))
    assert not others()


async def test_a_process_that_answers_nobody_any_more_is_replaced(monkeypatch):
    monkeypatch.setattr(process, "STOP_SECONDS", 0.2)
    async with stdio("bare", shared=True) as server:
        (environment,) = await opened(server, 1)
        first = await call(environment, "pid")
        session = await server.shared_session().session()
        session._timeout = 0.3
        with pytest.raises(EnvironmentBroken, match=r"did not answer hang within 0\.3 s"):
            await call(environment, "hang")
        assert await call(environment, "pid") != first
        await environment.close()
    assert not others()


async def test_a_call_that_is_late_while_others_are_answered_costs_only_itself():
    async with stdio("toolbox", shared=True) as server:
        (environment,) = await opened(server, 1)
        first = await call(environment, "pid")
        session = await server.shared_session().session()
        session._timeout = 2.0
        late = asyncio.create_task(call(environment, "sleep", seconds=600))
        while not late.done():
            assert await call(environment, "pid") == first
            await asyncio.wait({late}, timeout=0.2)
        with pytest.raises(EnvironmentBroken, match="did not answer sleep"):
            await late
        assert await call(environment, "pid") == first
        await environment.close()


async def test_a_server_that_cannot_start_fails_once_for_all_who_wait(tmp_path):
    started = tmp_path / "started"
    script = f"echo x >> {started}; sleep 0.3; echo no luck >&2; exit 4"
    server = McpServer.stdio("sh", "-c", script, shared=True)
    environments = [server.environment() for _ in range(20)]
    results = await asyncio.gather(
        *(environment.reset(seed=1) for environment in environments), return_exceptions=True
    )
    for item in environments:
        await item.close()
    assert not others()
    texts = [str(result) for result in results]
    assert len(texts) == 20
    assert all("exit status 4" in text and "| no luck" in text for text in texts)
    assert started.read_text() == "x\n"


def test_a_server_that_dies_before_it_answers_anything_is_started_ever_more_slowly():
    pauses: list[float] = []

    class Dead:
        is_alive = False
        answered = False

        async def close(self) -> None: ...

    async def played(monkeypatch) -> None:
        async def open_session() -> Dead:
            return Dead()

        async def sleep(seconds: float) -> None:
            pauses.append(seconds)

        monkeypatch.setattr(asyncio, "sleep", sleep)
        shared = SharedSession(open_session)
        await shared.hold()
        for _ in range(8):
            await shared.session()
        await shared.release()

    with pytest.MonkeyPatch.context() as monkeypatch:
        asyncio.run(played(monkeypatch))
    assert pauses == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]


def test_a_server_described_once_works_in_one_loop_after_another():
    server = stdio("bare", shared=True)

    async def played() -> str:
        (environment,) = await opened(server, 1)
        try:
            return await call(environment, "rune")
        finally:
            await environment.close()
            assert not others()

    assert [asyncio.run(played()) for _ in range(2)] == ["? \ufffd ?"] * 2


async def test_closing_what_could_not_be_opened_does_nothing():
    server = stdio("broken", "leaving", shared=True)
    with pytest.raises(EnvironmentBroken):
        await server.open()
    await server.aclose()
    await server.aclose()
    assert not others()
