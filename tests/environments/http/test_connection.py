"""What can go wrong between an environment's client and its server, and in the environment."""

import asyncio
import logging
import time

import pytest

from holdfast.environments.http import environment as connection
from holdfast.environments.http.environment import TRIES, EnvironmentEndpoint, HttpEnvironment
from holdfast.policy.retry import RetryPolicy
from holdfast.records.errors import EnvironmentBroken, UsageError
from support.environments.http_servers import Line, opened, serving
from support.environments.http_worlds import KeptLedger, Ledger

SECRET = "s3cr3t-of-mine"


@pytest.fixture(autouse=True)
def hasty(monkeypatch):
    """Short pauses between tries."""
    monkeypatch.setattr(connection, "_PAUSES", RetryPolicy(base=0.01))


def done(log) -> list[str]:
    return log.read_text().splitlines()


# --- answers that are lost


def test_a_step_whose_answer_was_lost_is_done_once(tmp_path):
    log = tmp_path / "log"

    async def scenario(server):
        async with (
            Line(server.url).open() as line,
            opened(line.url, task={"log": str(log)}) as environment,
        ):
            line.lose = [b"/step", b"/step"]
            first = await environment.step("add 5")
            second = await environment.step("add 5")
            return first.text, second.text, line.requests

    # A beginning, and two steps of which the first was sent three times.
    assert serving(scenario) == ("total 5", "total 10", 5)
    assert done(log) == ["reset 0", "step add 5", "step add 5", "close"]


def test_a_refusal_whose_answer_was_lost_is_the_same_refusal(tmp_path):
    log = tmp_path / "log"

    async def scenario(server):
        async with Line(server.url).open() as line:
            endpoint = await EnvironmentEndpoint.describe(line.url)
            environment = endpoint.environment(task={"log": str(log)})
            await environment.reset(seed=0)
            add = environment.tools[0]
            line.lose = [b"/tool"]
            try:
                with pytest.raises(Exception, match="more than 100") as refused:
                    await add.invoke({"amount": 200})
                return type(refused.value).__name__, await add.invoke({"amount": 2})
            finally:
                await environment.close()

    assert serving(scenario) == ("ToolSaysNo", "total 2")
    assert done(log) == ["reset 0", "add 200", "add 2", "close"]


def test_a_beginning_and_an_end_whose_answers_were_lost_happen_once(tmp_path):
    log = tmp_path / "log"

    async def scenario(server):
        async with Line(server.url).open() as line:
            line.lose = [b"POST /sessions ", b"DELETE"]
            async with opened(line.url, task={"log": str(log)}):
                assert server.sessions == 1
            return line.lose

    assert serving(scenario) == []
    assert done(log) == ["reset 0", "close"]


def test_a_snapshot_whose_answer_was_lost_is_asked_for_again():
    async def scenario(server):
        async with (
            Line(server.url).open() as line,
            opened(line.url, recovery="snapshot") as environment,
        ):
            line.lose = [b"/snapshot"]
            return await environment.snapshot()

    assert serving(scenario, KeptLedger) == b"\xff0"


def test_a_line_that_loses_everything_is_given_up_after_a_few_tries(tmp_path):
    log = tmp_path / "log"

    async def scenario(server):
        async with (
            Line(server.url).open() as line,
            opened(line.url, task={"log": str(log)}) as environment,
        ):
            line.lose, before = [b"/step"] * 100, line.requests
            with pytest.raises(EnvironmentBroken, match="cannot be used: connection lost"):
                await environment.step("add 1")
            return line.requests - before

    assert serving(scenario) == TRIES
    assert done(log) == ["reset 0", "step add 1", "close"]


def test_a_client_that_gave_up_on_a_beginning_leaves_no_session():
    async def scenario(server):
        environment = HttpEnvironment(server.url)
        beginning = asyncio.create_task(environment.reset(seed=0))
        while not server.sessions:
            await asyncio.sleep(0.01)
        beginning.cancel()
        await asyncio.wait({beginning})
        assert beginning.cancelled()
        assert server.sessions == 1
        await environment.close()
        while server.sessions:
            await asyncio.sleep(0.01)

    class Slow(Ledger):
        def reset(self, *, seed):
            time.sleep(1.0)
            return super().reset(seed=seed)

    serving(scenario, Slow)


# --- an environment that breaks


@pytest.mark.parametrize("what", ["reset", "step", "close", "snapshot", "restore"])
def test_what_an_environment_raises_is_told_without_secrets(what, tmp_path, caplog):
    log = tmp_path / "log"
    task = {"broken": what, "log": str(log), "secret": SECRET}

    async def all_of_it(url):
        options = {"task": task, "recovery": "snapshot", "token": SECRET}
        async with opened(url, **options) as environment:
            await environment.step("add 1")
            await environment.restore(await environment.snapshot())

    async def scenario(server):
        with pytest.raises(EnvironmentBroken) as broken:
            await all_of_it(server.url)
        while server.sessions:
            await asyncio.sleep(0.01)
        return str(broken.value)

    with caplog.at_level(logging.WARNING):
        message = serving(scenario, KeptLedger, token=SECRET)
    assert "answered 500 to /sessions" in message
    assert f"RuntimeError: {what}" in message
    assert SECRET not in message + caplog.text
    assert "in _did" in caplog.text  # The traceback, for whoever runs the server.
    assert done(log).count("close") == (2 if what == "restore" else 1)


def test_a_broken_session_stays_broken_and_touches_no_other():
    async def scenario(server):
        async with opened(server.url) as good, opened(server.url) as bad:
            with pytest.raises(EnvironmentBroken, match="ExitCalled"):
                await bad.step("exit")
            with pytest.raises(EnvironmentBroken):
                await bad.step("add 1")
            return (await good.step("add 1")).text

    assert serving(scenario) == "total 1"


def test_a_reward_that_is_no_number_breaks_it():
    async def scenario(server):
        async with opened(server.url) as environment:
            with pytest.raises(EnvironmentBroken, match="reward nan is not a finite number"):
                await environment.step("nan")

    serving(scenario)


def test_a_step_that_hangs_costs_its_caller_no_more_than_the_timeout_and_is_closed_later(tmp_path):
    log, hold = tmp_path / "log", tmp_path / "hold"
    hold.touch()

    async def scenario(server):
        environment = HttpEnvironment(server.url, task={"log": str(log)}, timeout=2.0)
        await environment.reset(seed=0)
        with pytest.raises(EnvironmentBroken, match=r"did not answer POST /sessions/…/step within"):
            await environment.step(f"hold {hold}")
        await environment.close()
        still_counted = server.sessions
        hold.unlink()
        while server.sessions:
            await asyncio.sleep(0.02)
        return still_counted

    assert serving(scenario) == 1
    assert done(log) == ["reset 0", f"step hold {hold}", "close"]


def test_the_servers_own_deadline_is_told_by_the_server():
    class Hasty(Ledger):
        def reset(self, *, seed):
            self.timeout = 0.1  # Of what comes after it.
            return super().reset(seed=seed)

    async def scenario(server):
        async with opened(server.url) as environment:
            with pytest.raises(EnvironmentBroken, match=r"step was not done within 0\.1 s"):
                await environment.step("sleep 0.5")
            with pytest.raises(EnvironmentBroken):
                await environment.step("add 1")

    serving(scenario, Hasty)


# --- a server without room, or not there


def test_without_room_a_client_waits_for_its_turn():
    async def scenario(server):
        async def waits():
            async with opened(server.url, seed=9) as second:
                return (await second.step("add 1")).text

        async with opened(server.url):
            second = asyncio.create_task(waits())
            await asyncio.sleep(0.1)
            assert not second.done()
        return await second

    assert serving(scenario, max_sessions=1) == "total 10"


def test_without_room_for_too_long_it_says_so():
    async def scenario(server):
        async with opened(server.url):
            with pytest.raises(EnvironmentBroken, match="all 1 sessions are in use"):
                async with opened(server.url, timeout=2.0):
                    pass

    serving(scenario, max_sessions=1)


async def test_a_server_that_is_not_there_is_a_broken_environment():
    async with Line("http://127.0.0.1:1").open() as line:
        nowhere = line.url
    with pytest.raises(EnvironmentBroken, match="connection lost"):
        async with opened(nowhere):
            pass


@pytest.mark.parametrize("token", [None, "another-token"])
def test_a_wrong_token_is_refused_and_never_shown(token):
    async def scenario(server):
        with pytest.raises(UsageError, match="give the environment its `token`") as refused:
            await EnvironmentEndpoint.describe(server.url, token=token)
        with pytest.raises(UsageError):
            async with opened(server.url, token=token):
                pass
        async with opened(server.url, token=SECRET) as environment:
            await environment.step("add 1")
        return str(refused.value)

    message = serving(scenario, token=SECRET)
    assert SECRET not in message
    assert "another-token" not in message


async def test_another_web_server_is_not_taken_for_an_environment():
    async def hello(reader, writer):
        await reader.read(1 << 16)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\n<html/>")
        writer.close()

    async with await asyncio.start_server(hello, "127.0.0.1", 0) as web:
        url = f"http://127.0.0.1:{web.sockets[0].getsockname()[1]}"
        with pytest.raises(UsageError, match="serves no environment"):
            await EnvironmentEndpoint.describe(url)
        with pytest.raises(EnvironmentBroken, match=r"cannot be read.*begins: <html/>"):
            async with opened(url):
                pass
