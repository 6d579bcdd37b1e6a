"""The gateway's socket as a port in a world without a network, on a real engine (`make worlds`)."""

import asyncio
import os
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from secrets import token_hex

import pytest

from holdfast.worlds.contract.failures import WorldRefused
from holdfast.worlds.contract.spec import Mount, WorldSpec
from holdfast.worlds.contract.world import World, WorldLabel
from holdfast.worlds.docker.provider import ContainerProvider
from holdfast.worlds.forwarding import ADDRESS, FOLDER, SOCKET, forward

REAL = os.environ.get("HOLDFAST_WORLDS", "")
IMAGE = os.environ.get("HOLDFAST_WORLDS_PYTHON", "python:3")
NODE = shutil.which("node") or ""
SIZE = 3_000_000
pytestmark = pytest.mark.skipif(not REAL, reason="make worlds starts a real engine")
REMOVED = {"python3": "true", "perl": "rm $(command -v python3)"}
"""What to do so that the program is in this language."""


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answers a request with as many bytes as it has."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
    length = int(head.partition("content-length: ")[2].split("\r\n")[0])
    body = await reader.readexactly(length)
    writer.write(f"HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n".encode() + body)
    await writer.drain()
    writer.close()


def within(
    folder: Path, body: Callable[[World], Awaitable[None]], *mounts: Mount, image: str = IMAGE
) -> None:
    async def run() -> None:
        shared = Mount(str(folder), FOLDER)
        spec = WorldSpec(provider="docker", image=image, mounts=(shared, *mounts))
        provider = ContainerProvider("docker", REAL)
        server = await asyncio.start_unix_server(answer, folder / SOCKET)
        try:
            world = await provider.create(
                spec, WorldLabel(world=token_hex(6), journal="forwarding")
            )
            try:
                await body(world)
            finally:
                await world.destroy()
        finally:
            server.close()
            await provider.close()

    asyncio.run(run())


async def assert_reached(world: World) -> None:
    await forward(world)
    ask = f"curl -sS --data-binary @/big {ADDRESS}/ | cmp - /big && echo same"
    await world.exec(f"head -c {SIZE} /dev/urandom > /big")
    results = await asyncio.gather(*(world.exec(ask, timeout=60) for _ in range(3)))
    assert [result.output for result in results] == ["same\n"] * 3
    assert (await world.exec("ls /sys/class/net")).output == "lo\n"


@pytest.mark.parametrize("language", list(REMOVED))
def test_a_world_without_a_network_reaches_the_socket(tmp_path, language) -> None:
    async def body(world: World) -> None:
        await world.exec(REMOVED[language])
        await assert_reached(world)

    within(tmp_path, body)


@pytest.mark.skipif(not NODE, reason="there is no node")
def test_a_world_with_node_alone_reaches_the_socket(tmp_path) -> None:
    async def body(world: World) -> None:
        await world.exec("rm $(command -v python3) $(command -v perl)")
        await assert_reached(world)

    within(tmp_path, body, Mount(str(Path(NODE).resolve()), "/usr/local/bin/node"))


def test_an_image_without_any_of_the_languages_is_refused(tmp_path) -> None:
    async def body(world: World) -> None:
        with pytest.raises(WorldRefused, match="the image has none of python3, node, perl"):
            await forward(world)

    within(tmp_path, body, image="busybox")
