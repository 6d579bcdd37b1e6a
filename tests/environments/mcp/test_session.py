"""Sessions of MCP servers that do not work: what is said, and that nothing is left behind."""

import asyncio
import shutil
import subprocess
import sys
import time
from pathlib import Path
from subprocess import DEVNULL

import pytest

from holdfast.environments.mcp import McpServer, process
from holdfast.records.errors import EnvironmentBroken, UsageError
from support.environments.mcp_servers.keeping import HERE, call, is_running, others, stdio


def refused(server: McpServer) -> str:
    """What `tools()` raises; nothing of the server is left then."""

    async def failure() -> str:
        with pytest.raises((EnvironmentBroken, UsageError)) as caught:
            await server.tools()
        assert not others()
        return f"{type(caught.value).__name__}: {caught.value}"

    return asyncio.run(failure())


def gone(pid: int) -> bool:
    """Whether it ends soon."""
    deadline = time.monotonic() + 60
    while is_running(pid) and time.monotonic() < deadline:
        time.sleep(0.01)
    return not is_running(pid)


def pids_in(path: Path) -> list[int]:
    return [int(word) for word in path.read_text().split()]


def test_a_command_that_does_not_exist_is_named():
    assert refused(McpServer.stdio("no-such-server", "--stdio")) == (
        "UsageError: MCP server `no-such-server --stdio`: there is no command no-such-server: "
        "install it, or give its path"
    )
    assert "there is no folder /nowhere" in refused(stdio("toolbox", cwd="/nowhere"))


def test_a_server_that_ends_at_once_is_named_with_its_status_and_its_last_words():
    refusal = refused(stdio("broken", "leaving", "the-sea"))
    assert refusal.startswith("EnvironmentBroken: MCP server `")
    assert "broken.py leaving the-sea` did not begin a session" in refusal
    assert (
        "it ended with exit status 3; its last output:\n  | no database at ['the-sea']" in refusal
    )


def test_secrets_are_not_among_the_last_words():
    server = stdio("broken", "leaving", "--api-key", "s3same-0pen", env={"BANK_KEY": "qwertyuiop"})
    refusal = refused(server)
    assert "for key [redacted]" in refusal
    assert "--api-key" in refusal
    for message in (refusal, repr(server), server.described, server.identity):
        assert "s3same" not in message
        assert "qwertyuiop" not in message


def test_a_server_that_never_begins_a_session_is_given_up():
    refusal = refused(stdio("broken", "silent", timeout=5.0))
    assert "did not begin a session within 5 s; its last output:\n  | I am listening" in refusal


def test_a_server_that_ends_for_nobody_is_killed_with_its_children(tmp_path, monkeypatch):
    monkeypatch.setattr(process, "STOP_SECONDS", 0.2)
    message = tmp_path / "pids"
    assert "within 5 s" in refused(stdio("broken", "stubborn", str(message), timeout=5.0))
    server, child = pids_in(message)
    assert gone(server)
    assert gone(child)


async def test_cancelling_who_opens_a_session_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(process, "STOP_SECONDS", 0.2)
    message = tmp_path / "pids"
    opening = asyncio.create_task(stdio("broken", "stubborn", str(message)).tools())
    while not message.exists() or not message.read_text():
        await asyncio.sleep(0.01)
    opening.cancel()
    await asyncio.sleep(0.05)
    opening.cancel()
    await asyncio.wait({opening})
    assert opening.cancelled()
    assert not others()
    assert not any(map(is_running, pids_in(message)))


def test_the_end_of_the_loop_ends_a_server_that_nobody_closed(tmp_path, monkeypatch):
    monkeypatch.setattr(process, "STOP_SECONDS", 0.2)
    message = tmp_path / "pids"

    async def forgotten() -> None:
        environment = stdio("broken", "stubborn", str(message)).environment()
        waiting = asyncio.create_task(environment.reset(seed=1))
        while not message.exists() or not message.read_text():
            await asyncio.sleep(0.01)
        assert not waiting.done()

    asyncio.run(forgotten())
    assert all(map(gone, pids_in(message)))


@pytest.mark.skipif(shutil.which("setpriv") is None, reason="no setpriv here")
def test_a_server_does_not_outlive_a_driver_that_is_killed(tmp_path):
    message = tmp_path / "pids"
    command = [sys.executable, str(HERE / "orphan.py"), str(HERE / "broken.py"), "stubborn"]
    with subprocess.Popen([*command, str(message)], stdout=subprocess.PIPE) as driver:
        assert driver.stdout.readline() == b"ready\n"
        server, child = pids_in(message)
        assert is_running(server)
        driver.kill()
    try:
        # This one ignores the end of its input; only the kernel can tell it.
        assert gone(server)
    finally:
        subprocess.run(["kill", "-KILL", str(child), str(server)], check=False, stderr=DEVNULL)


def test_a_server_that_knows_only_the_handshake_works_and_its_odd_bytes_are_replaced():
    async def played() -> str:
        environment = stdio("bare").environment()
        await environment.reset(seed=1)
        try:
            return await call(environment, "rune")
        finally:
            await environment.close()

    assert asyncio.run(played()) == "? \ufffd ?"


async def test_a_server_that_dies_in_a_call_breaks_that_call_and_takes_no_more():
    environment = stdio("toolbox").environment()
    await environment.reset(seed=1)
    pid = int(await call(environment, "pid"))
    with pytest.raises(EnvironmentBroken, match="ended by SIGKILL") as caught:
        await call(environment, "die")
    assert "was lost while it ran die" in str(caught.value)
    assert "the last that I say" in str(caught.value)
    with pytest.raises(EnvironmentBroken, match="is gone, and echo was not called"):
        await call(environment, "echo", text="x")
    assert not is_running(pid)
    await environment.close()
    assert not others()


async def test_a_reset_begins_anew_with_another_process():
    environment = stdio("bare").environment()
    message = []
    for seed in range(2):
        await environment.reset(seed=seed)
        message += [await call(environment, "add_one"), await call(environment, "add_one")]
    await environment.close()
    assert not others()
    assert (message) == ["1", "2"] * 2


async def test_a_call_that_takes_too_long_breaks_and_is_no_answer():
    server = stdio("pages", timeout=20)
    environment = server.environment()
    await environment.reset(seed=1)
    environment._session._timeout = 0.2
    with pytest.raises(EnvironmentBroken, match="did not answer second within"):
        await call(environment, "second", x=600)
    await environment.close()
    assert not others()


def test_tools_are_listed_over_all_pages_and_called_by_the_server_s_names():
    async def played() -> list[str]:
        server = stdio("pages", prefix="my.")
        environment = server.environment()
        await environment.reset(seed=1)
        try:
            names = [tool.name for tool in environment.tools]
            return [*names, *[await call(environment, name) for name in names]]
        finally:
            await environment.close()

    assert asyncio.run(played()) == ["my_first", "my_second", "first ran", "second ran"]


IMPORTED = """
import asyncio, sys, threading
from holdfast.environments.mcp import McpServer

class Watch:
    def find_spec(self, name, path=None, target=None):
        if name == "mcp":
            print("imported in", threading.current_thread().name)

async def main():
    try:
        await McpServer("false").tools()
    except Exception as error:
        print(type(error).__name__)

assert "mcp" not in sys.modules
sys.meta_path.insert(0, Watch())
asyncio.run(main())
"""


def test_the_package_is_imported_beside_the_loop() -> None:
    done = subprocess.run([sys.executable, "-c", IMPORTED], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "imported in asyncio_0" in done.stdout
    assert "MainThread" not in done.stdout
