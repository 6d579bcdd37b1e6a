"""Makes scratch folders, which are used while an agent or a program runs and removed afterwards.

Each folder is locked as long as it is in use. A folder of a killed process is removed by the next
process that needs such a folder, together with the agents that still run in it. A folder of a
living process is never touched.
"""

import hashlib
import logging
import os
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from holdfast import crashpoint
from holdfast.environments.workspace import folder as folders
from holdfast.environments.workspace.threads import in_thread
from holdfast.records.errors import EnvironmentBroken
from holdfast.records.trajectory import TrajectoryKey

WORKING = folders.FILES
"""The name of the subfolder in which an agent runs. Leftover processes are found by this folder."""
_log = logging.getLogger("holdfast.gateway")


_SHORT = "/tmp"  # noqa: S108 - the folder in it is checked to be the user's own
_MAX_SOCKET_PATH_BYTES = 103
"""The most bytes of a socket's address: 103 on macOS, 107 on Linux."""
_WITHIN = len("/0123456789ab/000001/999.sock")
"""The length of the part of a socket's path that comes after the root."""
_MAX_NAMES = 1000
"""The most folders of one trajectory, and so the most runs with the same name that can run at the
same time."""


def root(*, for_sockets: bool = False) -> str:
    name = f"holdfast-agents-{os.geteuid()}"
    path = os.path.join(tempfile.gettempdir(), name)
    if for_sockets and len(os.fsencode(os.path.realpath(path))) + _WITHIN > _MAX_SOCKET_PATH_BYTES:
        return os.path.join(_SHORT, name)
    return path


@asynccontextmanager
async def scratch(*, for_sockets: bool = False) -> AsyncIterator[Path]:
    """Yields a new, empty folder, which is removed with its contents afterwards. With
    `for_sockets`, its path is short enough for the addresses of sockets."""
    where = root(for_sockets=for_sockets)
    place = await in_thread(lambda: folders.new_place(where))
    try:
        yield Path(place)
    finally:
        try:
            await in_thread(lambda: folders.remove(place))
        except EnvironmentBroken as error:
            # A process that escaped may still write there, so the next process removes the folder.
            _log.warning("an agent's folder is left for now: %s", error)


@asynccontextmanager
async def trajectory_folder(key: TrajectoryKey) -> AsyncIterator[Path]:
    """Yields an empty folder for a trajectory. It has the same path in each attempt, even in
    another process. If the folder is in use elsewhere (by a driver that was frozen, or another run
    of the same name), yields another folder and logs this."""
    claim = folders.FolderClaim(root(), (_name_of(key, number) for number in range(_MAX_NAMES)))
    try:
        place = await in_thread(claim.take)
        if claim.name != _name_of(key, 0):
            _log.warning("the folder of %s is in use elsewhere: this attempt has %s", key, place)
        crashpoint.reach("agent.folder")
        yield Path(place)
        crashpoint.reach("agent.ended")
    finally:
        await in_thread(claim.give_up)


def _name_of(key: TrajectoryKey, number: int) -> str:
    """Returns a folder's name. It is short and always equally long, because agents may show it to
    the model."""
    text = "\0".join((key.run, key.task, str(key.sample))).encode("utf-8", "surrogatepass")
    return hashlib.blake2b(text, digest_size=6, salt=number.to_bytes(16, "big")).hexdigest()
