"""Bodies that are no text, holds while a gateway closes, what may not be ignored, and temporary
folders that are somebody else's, or far away."""

import asyncio
import json
import os
import signal
import subprocess
import sys

import pytest
from aiohttp import web
from counter import CHAT, HELLO, Counter, exchange, opened, post
from outpost import REPLIES, Agent, Outpost, posted, until, work
from stage import Oracle, Play
from test_outside_hold import holding
from yard import Yard

from holdfast.gateway.agents import temp_dirs
from holdfast.gateway.agents.remote import RemoteRolloutProcessor
from holdfast.gateway.assignment.hold_routes import OutsideHold
from holdfast.gateway.assignment.routes import _read as read_wanted
from holdfast.gateway.calls.strip_fields import Ignoring
from holdfast.gateway.limits import GatewayLimits
from holdfast.gateway.protocol.messages import RequestRejected
from holdfast.gateway.server import Gateway
from holdfast.gateway.weight_hold import CallGate
from holdfast.gateway.wires.all import WIRES
from holdfast.gateway.workers.peers import Peers, WorkerPlace
from holdfast.records.errors import UsageError
from holdfast.testing import FakeEngine

NO_TEXT = b'{"\xff": 1}'
AGENT = """
import json, os, urllib.request
task = json.load(open(os.environ["HOLDFAST_TASK"]))
body = json.dumps({"model": "m", "messages": task["messages"]}).encode()
urllib.request.urlopen(urllib.request.Request(os.environ["HOLDFAST_URL"] + "/v1/chat/completions",
    body, {"Content-Type": "application/json"})).read()
"""
DRIVER = """
import sys, holdfast
solve = holdfast.BlackBoxRolloutProcessor([sys.executable, {agent!r}])
"""


# --- bodies that are no text


@pytest.mark.parametrize(
    ("path", "sent"),
    [("/hold", NO_TEXT), ("/release", NO_TEXT), ("/mcp", b'{"id": 1, "method": "\xff"}')],
)
def test_a_body_that_is_no_text_is_refused(path, sent):
    async def body():
        outside = OutsideHold(lambda seconds: CallGate().hold(seconds), peers=None)
        async with opened(endpoints=outside.endpoints()) as (counter, _, binding):
            reply = await exchange(counter.port, post(path, sent, binding))
            assert reply.status == 400, reply.body

    asyncio.run(body())


def test_who_asks_for_a_trajectory_in_no_text_is_refused():
    with pytest.raises(RequestRejected, match="it wants"):
        read_wanted(NO_TEXT)


def test_a_service_that_answers_in_no_text_has_broken():
    async def started(_: web.Request) -> web.Response:
        return web.Response(body=b'{"id": "\xff"}', content_type="application/json")

    yard = Yard()

    async def body():
        app = web.Application()
        app.router.add_post("/runs", started)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = site._server.sockets[0].getsockname()[1]
        try:
            solve = RemoteRolloutProcessor(f"http://127.0.0.1:{port}")
            await yard.work(solve, max_retry=0)
        finally:
            await runner.cleanup()

    asyncio.run(body())
    assert {str(one.cause) for one in yard.history().failures} == {"environment"}


# --- holds


def test_a_hold_that_is_asked_for_while_the_gateway_closes_holds_up_nothing():
    """Its head came before, and its body after."""

    async def begun(port: int, raw: bytes):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        head, end, rest = raw.partition(b"\r\n\r\n")
        writer.write(head + end)
        await writer.drain()

        async def finish() -> bytes:
            writer.write(rest)
            told = await reader.read()
            writer.close()
            return told

        return finish

    async def body():
        outside = OutsideHold(lambda seconds: gateway.hold(seconds), peers=None)
        limits = GatewayLimits(drain_seconds=30)
        gateway = Gateway(WIRES, limits=limits, endpoints=outside.endpoints())
        async with gateway:
            counter = Counter(gateway, Play(Oracle()))
            async with counter.attempt() as (_, binding):
                hold = await begun(counter.port, post("/hold", {"seconds": 600}))
                call = await begun(counter.port, post(CHAT, HELLO, binding))
                while gateway._listener.in_flight < 2:
                    await asyncio.sleep(0.005)
                closing = asyncio.create_task(gateway.aclose())
                while not gateway._listener.is_closing:
                    await asyncio.sleep(0.005)
                assert (await hold()).startswith(b"HTTP/1.1 200")
                assert (await call()).startswith(b"HTTP/1.1 200")
                await closing

    asyncio.run(body())


def test_a_hold_outlives_all_workers_at_once_and_so_does_a_release(tmp_path):
    with FakeEngine(replies=REPLIES) as engine:
        outpost = Outpost(tmp_path, engine, "--workers", 2, "--concurrency", 4)
        try:
            outpost.start()
            until(lambda: holding(outpost) == ["0", "0"])
            assert posted(f"{outpost.url}/hold", {"seconds": 600})["workers"] == 2
            kill_all_at_once(outpost)
            until(lambda: holding(outpost) == ["1", "1"])
            posted(f"{outpost.url}/release", {})
            kill_all_at_once(outpost)
            until(lambda: holding(outpost) == ["0", "0"])
            assert work(outpost, Agent(outpost), Agent(outpost)) == 0, outpost.said
        finally:
            outpost.close()


def kill_all_at_once(outpost: Outpost) -> None:
    killed = outpost.workers
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in killed:
            os.kill(pid, number)
    until(lambda: not set(killed) & set(outpost.workers))


def test_an_order_that_cannot_be_kept_is_obeyed_and_it_is_said(tmp_path, caplog):
    async def body():
        gate = CallGate()
        peers = Peers(WorkerPlace(str(tmp_path / "gone"), 0, 1), GatewayLimits())
        outside = OutsideHold(gate.hold, peers=peers)
        async with opened(endpoints=outside.endpoints()) as (counter, _, binding):
            reply = await exchange(counter.port, post("/hold", {"seconds": 60}, binding))
            assert (reply.status, reply.json["workers"]) == (200, 1)
            assert gate.gauges["holding"]
        gate.open()

    asyncio.run(body())
    assert "a hold is not kept" in caplog.text


# --- what may not be ignored


@pytest.mark.parametrize(
    "name", ["previous_response_id", "conversation", "conversation.id", "functions", "suffix"]
)
def test_what_stands_for_a_conversation_or_for_all_tools_cannot_be_ignored(name):
    with pytest.raises(UsageError, match="a request is nothing without it"):
        Ignoring([name])


@pytest.mark.parametrize("name", [1, None, ["seed"]])
def test_what_is_no_name_cannot_be_ignored(name):
    with pytest.raises(UsageError, match="a list of names"):
        Ignoring(["seed", name])


# --- temporary folders


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_folder_that_is_somebody_elses_is_told_before_the_first_attempt(tmp_path):
    agent, driver, tmp = tmp_path / "agent.py", tmp_path / "driver.py", tmp_path / "tmp"
    agent.write_text(AGENT)
    driver.write_text(DRIVER.format(agent=str(agent)))
    (tmp_path / "tasks.jsonl").write_text(json.dumps({"id": "a", "prompt": "do it"}) + "\n")
    theirs = tmp / f"holdfast-agents-{os.geteuid()}"
    theirs.mkdir(parents=True)
    os.chown(theirs, 1234, 1234)
    with FakeEngine() as engine:
        words = [
            *(sys.executable, "-m", "holdfast", "run", driver, "--run", "r", "--quiet"),
            *("--tasks", tmp_path / "tasks.jsonl", "--journal", tmp_path / "journal.db"),
            *("--policy", engine.url, "--model", engine.model),
        ]
        env = {**os.environ, "TMPDIR": str(tmp)}
        done = subprocess.run(
            [str(word) for word in words], env=env, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 2, done.stderr
        assert "belongs to somebody else" in done.stderr
        os.chown(theirs, os.geteuid(), os.getegid())
        # Nothing has failed for good: the same command goes on.
        assert subprocess.run([str(word) for word in words], env=env, timeout=60).returncode == 0
        assert engine.stats().completions == 1


def test_workers_find_each_other_wherever_the_temporary_folder_is(tmp_path):
    """A socket's address has about a hundred bytes."""
    far = tmp_path / ("f" * 90)
    far.mkdir()
    with FakeEngine(replies=REPLIES) as engine:
        outpost = Outpost(tmp_path / "o", engine, "--workers", 2, "--concurrency", 4)
        try:
            outpost.start(TMPDIR=str(far))
            until(lambda: holding(outpost) == ["0", "0"])
            assert work(outpost, Agent(outpost), Agent(outpost)) == 0, outpost.said
        finally:
            outpost.close()


def test_only_what_needs_short_addresses_goes_elsewhere(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / ("f" * 90)))
    assert temp_dirs.root().startswith(str(tmp_path))
    assert not temp_dirs.root(for_sockets=True).startswith(str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", "/var/tmp")
    assert temp_dirs.root(for_sockets=True) == temp_dirs.root()
