"""Locks engines, so that an engine has the weights of one training at a time.

If two trainings gave their weights to the same engine, each would be trained on samples of the
other training's weights. A training therefore locks its engines with locks on this machine, which
the kernel releases when the process ends. A training on another machine or of another user is not
detected.
"""

import fcntl
import hashlib
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

from holdfast.private_files import open_private, private_folder
from holdfast.records.encoding.redaction import public_address
from holdfast.records.errors import HoldfastError
from holdfast.records.exit_codes import Exit


class EngineInUse(HoldfastError):
    """Another training gives its weights to this engine."""

    exit_code = Exit.HELD


@contextmanager
def hold_engines(urls: Sequence[str], *, run: str) -> Iterator[None]:
    """Holds the lock of each engine until the end of the block. Raises `EngineInUse`, with the name
    of the training that holds an engine."""
    with ExitStack() as stack:
        for url in dict.fromkeys(map(_place, urls)):
            stack.enter_context(_held(url, run))
        yield


def _place(url: str) -> str:
    """Returns the host, port and path of the address, which identify an engine."""
    parts = urlsplit(url)
    host = "127.0.0.1" if parts.hostname == "localhost" else parts.hostname
    port = parts.port or (443 if parts.scheme == "https" else 80)
    return f"{host}:{port}{parts.path.removesuffix('/').removesuffix('/v1')}"


@contextmanager
def _held(place: str, run: str) -> Iterator[None]:
    try:
        handle = open_private(_file(place))
    except OSError:
        yield  # The lock cannot be written: the temporary folder is full or read-only.
        return
    try:
        _lock(handle, place)
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"run {run!r} in process {os.getpid()}".encode(), 0)
        yield
    finally:
        with suppress(OSError):
            os.ftruncate(handle, 0)
        os.close(handle)


def _lock(handle: int, place: str) -> None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        owner = os.pread(handle, 1_000, 0).decode(errors="replace")
        raise EngineInUse(
            f"{public_address(f'http://{place}')} has the weights of another training "
            f"({owner or 'it is about to begin'}), and each would be trained on what the other one "
            "samples: wait for it, stop it, or give another engine"
        ) from error


def _file(place: str) -> Path:
    folder = private_folder(Path(tempfile.gettempdir()) / f"holdfast-engines-{os.geteuid()}")
    return folder / f"{hashlib.sha256(place.encode()).hexdigest()[:16]}.lock"
