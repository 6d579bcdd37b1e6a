"""Tools that need a process of their own: what isolated tools are tested with."""

import asyncio
import ctypes
import functools
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from datetime import datetime

from holdfast.records.errors import ToolSaysNo
from holdfast.rollout.tools.tool import Tool, tool

loaded = time.time_ns()
isolated = functools.partial(tool, isolated=True)

MAX_DESCRIPTOR = 1024
"""Above those that a test process has open."""


@dataclass
class Point:
    x: int
    y: int = 0


class OutOfStock(ToolSaysNo): ...


class Unreadable(Exception):
    def __str__(self) -> str:
        raise ValueError("no words")


@isolated()
def where(idempotency_key: str = "") -> str:
    return f"{os.getpid()} {loaded} {idempotency_key}"


@isolated()
async def later(seconds: float = 0.0) -> int:
    await asyncio.sleep(seconds)
    return os.getpid()


@isolated()
async def until(path: str, begun: str = "") -> int:
    """Ends when there is such a file; makes another when it begins."""
    if begun:
        with open(begun, "w"):
            pass
    while not os.path.exists(path):
        await asyncio.sleep(0.01)
    return os.getpid()


@isolated()
def typed(at: Point, when: datetime, count: int = 7) -> str:
    return f"{type(at).__name__} {at.x} {at.y} {when.year} {count}"


@isolated()
def segfault() -> None:
    ctypes.string_at(0)


@isolated()
def leave(code: int) -> None:
    os._exit(code)


@isolated()
def kill_itself() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@isolated()
def leave_a_child_behind(file: str) -> None:
    """The child holds everything that a fork inherits, the connection too."""
    child = os.fork()
    if child == 0:
        with open(file, "w") as out:
            out.write(str(os.getpid()))
        time.sleep(60)
        os._exit(0)
    while not os.path.exists(file) or not os.path.getsize(file):
        time.sleep(0.01)
    os._exit(5)


@isolated(timeout=4.5)
def hang(file: str) -> None:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    with open(file + ".part", "w") as out:
        out.write(f"{os.getpid()} {child.pid}")
    os.rename(file + ".part", file)
    # Deaf to anything polite.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(600)


patient_hang = tool(isolated=True, name="patient_hang")(hang.function)


@isolated()
def returns(kind: str) -> object:
    kinds: dict[str, object] = {
        "ten megabytes": "x" * 10_000_000,
        "too much": "x" * (64 * 1024 * 1024 + 1),
        "bytes": b"\xff raw",
        "surrogate": "half \ud800",
        "nan": [float("nan")],
        "object": {"a": Point(1)},
    }
    return kinds[kind]


@isolated()
def says_no(custom: bool = False) -> None:
    raise OutOfStock("none left \ud800") if custom else ToolSaysNo("not today")


@isolated()
def breaks(kind: str) -> None:
    kinds = {
        "key": KeyError("the tool's own"),
        "exit": SystemExit(3),
        "interrupt": KeyboardInterrupt(),
        "unreadable": Unreadable(),
        "long": ValueError("x" * 1_000_000),
    }
    raise kinds[kind]


@isolated()
def noise() -> str:
    print("\0" * 1_000)
    os.write(1, b"to stdout\n")
    os.write(2, b"to stderr\n")
    return "quiet"


@isolated()
def hang_up() -> None:
    os.closerange(3, MAX_DESCRIPTOR)
    time.sleep(60)


@isolated()
def garbage() -> None:
    for number in range(3, MAX_DESCRIPTOR):
        try:
            os.write(number, b"\xff" * 64)
        except OSError:
            continue
    time.sleep(60)


def plain(a: int) -> int:
    return a + 1


plain_tool = Tool(plain, name="another_name", isolated=True)
