"""What a world cannot do, on a real engine (`make worlds`)."""

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable
from secrets import token_hex

import pytest
from msgspec import structs

from holdfast.worlds.contract.failures import WorldRefused
from holdfast.worlds.contract.output import GIB, MIB
from holdfast.worlds.contract.spec import WorldSpec, parse_spec
from holdfast.worlds.contract.world import World, WorldLabel
from holdfast.worlds.docker.provider import ContainerProvider

REAL = os.environ.get("HOLDFAST_WORLDS", "")
SPEC = parse_spec("docker:busybox,memory=64m,pids=50")
SECRET = "the-key-of-the-driver"
pytestmark = pytest.mark.skipif(not REAL, reason="make worlds starts a real engine")


def within(body: Callable[[World], Awaitable[None]], spec: WorldSpec = SPEC) -> None:
    async def run() -> None:
        provider = ContainerProvider("docker", REAL)
        try:
            await provider.prepare(spec)
            world = await provider.create(spec, WorldLabel(world=token_hex(6), journal="isolation"))
            try:
                await body(world)
            finally:
                await world.destroy()
        finally:
            await provider.close()

    asyncio.run(run())


def test_a_fork_bomb_stops_at_the_limit_and_the_world_goes_on() -> None:
    async def body(world: World) -> None:
        await world.exec("bomb() { bomb | bomb & }; bomb; sleep 2", timeout=5)
        await world.exec(["true"])
        count = "ls /proc | grep -c '^[0-9]'"
        result = await world.exec(count, timeout=30)
        assert int(result.output.split()[-1]) <= 50

    within(body)


def test_memory_beyond_the_limit_is_not_had() -> None:
    async def body(world: World) -> None:
        result = await world.exec("x=a; while :; do x=$x$x$x$x; done", timeout=60)
        assert not result.ok
        assert (await world.exec("echo alive")).output == "alive\n"

    within(body)


def test_a_read_only_world_takes_no_file_of_ten_gigabytes() -> None:
    async def body(world: World) -> None:
        result = await world.exec("head -c 10737418240 /dev/zero > /big", timeout=60)
        assert not result.ok
        assert "Read-only" in result.output

    within(body, structs.replace(SPEC, read_only=True))


def test_a_disk_limit_is_kept_or_refused_before_anything_is_made() -> None:
    async def body(world: World) -> None:
        result = await world.exec(f"head -c {GIB} /dev/zero > /big", timeout=60)
        assert not result.ok

    with contextlib.suppress(WorldRefused):
        within(body, structs.replace(SPEC, disk=64 * MIB))


def test_without_a_network_nothing_is_reached() -> None:
    async def body(world: World) -> None:
        interfaces = await world.exec("ls /sys/class/net")
        assert interfaces.output.split() == ["lo"]
        result = await world.exec("wget -T 3 -q -O - http://172.17.0.1:80; echo ended")
        assert "ended" in result.output

    within(body)


def test_nothing_of_the_driver_is_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_API_KEY", SECRET)

    async def body(world: World) -> None:
        result = await world.exec("env; cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline; mount; ls /")
        for secret in (SECRET, "holdfast.db", "docker.sock", os.getcwd()):
            assert secret not in result.output

    within(body)
