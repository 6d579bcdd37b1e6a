"""Connects to a Ray cluster, after checking everything that can be wrong, before any work
begins."""

import asyncio
import contextlib
import os
import platform
import re
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from holdfast.cluster.folder import TravelFolder
from holdfast.extras import needed_by
from holdfast.records.errors import UsageError
from holdfast.rollout.threads.pool import DaemonThreads

AUTO = "auto"
REACH_SECONDS = 10.0
CONNECT_SECONDS = 120.0
ray_calls = DaemonThreads("calls of Ray")
"""Threads for calls that may block in Ray. The process does not wait for them when it exits."""
_HOST_PORT = re.compile(r"^[^\s/:]+:\d{1,5}$|^\[[0-9a-fA-F:]+\]:\d{1,5}$")


def import_ray() -> Any:
    """Imports Ray with its usage report and its own output turned off."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Otherwise Ray warns at each start about a future change for GPUs.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    with needed_by("--cluster", extra="ray"):
        import ray
    return ray


def check_cluster(address: str) -> None:
    """Raises `UsageError` if the text is not an address. Sends no request."""
    if address != AUTO and not _HOST_PORT.match(address):
        raise UsageError(
            f"--cluster {address}: wants {AUTO}, or the HOST:PORT of the cluster's head (6379 "
            "where `ray start --head` named no other); run the command on one of its nodes"
        )


@contextlib.asynccontextmanager
async def connected(
    address: str, folder: TravelFolder | None, *, requirements: list[str], log: Path
) -> AsyncIterator[Any]:
    """Connects to Ray, and disconnects afterwards, which ends all actors of this command. Ray's
    messages go to the file `log`."""
    check_cluster(address)
    ray = import_ray()
    if address != AUTO:
        await _reach(address)
    _keep_from_terminal(log)
    environment: dict[str, object] = {}
    if folder is not None:
        environment = {"working_dir": str(folder.root), "excludes": list(folder.excludes)}
    if requirements:
        environment["pip"] = requirements
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            await ray_calls.run(lambda: _init(ray, address, environment))
    except TimeoutError:
        raise UsageError(
            f"--cluster {address}: Ray did not connect within {CONNECT_SECONDS:g} s"
        ) from None
    try:
        yield ray
    finally:
        await asyncio.to_thread(ray.shutdown)


async def _reach(address: str) -> None:
    host, _, port = address.rpartition(":")
    try:
        async with asyncio.timeout(REACH_SECONDS):
            _, writer = await asyncio.open_connection(host.strip("[]"), int(port))
    except (OSError, OverflowError, TimeoutError) as error:
        why = str(error) or f"no answer within {REACH_SECONDS:g} s"
        raise UsageError(f"--cluster {address} names no cluster: {why}") from error
    writer.close()


def _keep_from_terminal(log: Path) -> None:
    """Redirects Ray's messages about nodes and processes to a file. Ray would print them to
    standard output, where the report goes, and has no option to prevent it."""
    from ray._private import worker

    def write(data: dict[str, Any], *_: object, **__: object) -> None:
        with log.open("a") as file:
            file.writelines(f"{line}\n" for line in data.get("lines", ()))

    if hasattr(worker, "print_to_stdstream"):
        worker.print_to_stdstream = write


def _init(ray: Any, address: str, environment: dict[str, object]) -> None:
    try:
        ray.init(
            address=address,
            runtime_env=environment,
            log_to_driver=False,
            logging_level="ERROR",
            configure_logging=True,
            namespace="holdfast",
        )
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        raise _refusal(ray, address, error) from error


def _refusal(ray: Any, address: str, error: Exception) -> UsageError:
    message = " ".join(str(error).split())
    if "ersion mismatch" in message:
        return UsageError(
            f"--cluster {address} runs other versions than this command, which has Ray "
            f"{ray.__version__} and Python {platform.python_version()}: {message}. Use the "
            "cluster's versions here"
        )
    if isinstance(error, ConnectionError) and address == AUTO:
        return UsageError(
            "--cluster auto finds no Ray on this machine: start one with `ray start --head`, join "
            "one with `ray start --address HEAD:6379`, or name the head's HOST:PORT"
        )
    return UsageError(f"--cluster {address} names no cluster that can be used: {message:.500}")


def resolves(host: str) -> bool:
    """Returns whether this machine can resolve the name to an address."""
    try:
        socket.getaddrinfo(host, None)
    except (OSError, UnicodeError):
        return False
    return True
