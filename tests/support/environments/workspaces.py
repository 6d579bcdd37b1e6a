"""Real workspaces for tests: opened, used, and looked at from outside."""

import asyncio
import os
import stat
import subprocess
import sys
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from holdfast.environments.workspace import Workspace
from holdfast.environments.workspace.sandbox.sandbox import why_no_bwrap
from holdfast.journal.types import digest_of

needs_bwrap = pytest.mark.skipif(bool(why_no_bwrap()), reason=f"no bubblewrap: {why_no_bwrap()}")
BOTH = (pytest.param("bwrap", marks=needs_bwrap), "none")
both = pytest.mark.parametrize("sandbox", BOTH)


OTHER = """
import asyncio, logging, sys
from holdfast.environments.workspace import Workspace
from holdfast.journal.sqlite.journal import MemoryJournal

async def main():
    logging.basicConfig()
    workspace = Workspace({"a": "b"}, root=sys.argv[1], sandbox=sys.argv[2], interpreter=False)
    workspace.blobs = MemoryJournal()
    await workspace.reset(seed=0)
    print(workspace.isolation, flush=True)
    print(await workspace.shell(sys.argv[3]), flush=True)
    await workspace.restore(await workspace.snapshot())
    print(await workspace.shell("cat a"), flush=True)
    await workspace.close()

asyncio.run(main())
"""


def start(*arguments: str, python: str = sys.executable, before=(), **options) -> subprocess.Popen:
    return subprocess.Popen(
        [*before, python, "-c", OTHER, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


class Blobs:
    """As much of a journal as a workspace uses. Remembers what was stored."""

    def __init__(self):
        self.stored: list[int] = []
        self.kept: dict[bytes, bytes] = {}

    async def put_blob(self, body: bytes) -> bytes:
        self.stored.append(len(body))
        self.kept[digest_of(body)] = bytes(body)
        return digest_of(body)

    async def get_blob(self, digest: bytes) -> bytes:
        return self.kept[digest]


@asynccontextmanager
async def opened(files=None, *, blobs=None, **options):
    options.setdefault("command_timeout", 250.0)
    workspace = Workspace(files or {}, **options)
    workspace.blobs = blobs or Blobs()
    try:
        await workspace.reset(seed=0)
        yield workspace
    finally:
        await workspace.close()


def shell(*commands: str, files=None, timeout=None, **options) -> str:
    """What the last of the commands says."""

    async def run():
        async with opened(files, **options) as workspace:
            for command in commands:
                output = await workspace.shell(command, timeout)
            return output

    return asyncio.run(run())


def contents(folder: str | Path) -> dict[bytes, tuple[object, ...]]:
    """All of a folder: kinds, modes, contents, targets."""
    fields: dict[bytes, tuple[object, ...]] = {}
    base = os.fsencode(folder)
    for where, folders, files in os.walk(base):
        for name in (*folders, *files):
            path = os.path.join(where, name)
            status = os.lstat(path)
            if stat.S_ISLNK(status.st_mode):
                message: tuple[object, ...] = ("link", os.readlink(path))
            elif stat.S_ISDIR(status.st_mode):
                message = ("folder", stat.S_IMODE(status.st_mode))
            else:
                message = (
                    "file",
                    stat.S_IMODE(status.st_mode),
                    Path(os.fsdecode(path)).read_bytes(),
                )
            fields[os.path.relpath(path, base)] = message
    return fields


def running(mark: str) -> list[str]:
    """Living processes whose command line has `mark` in it."""
    names = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/cmdline", "rb") as file:
                if mark.encode() in file.read():
                    names.append(name)
        except OSError:
            continue
    return names
