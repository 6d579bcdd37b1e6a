"""Images, containers and commands of the stand-in. Each image and container is a folder."""

import asyncio
import io
import os
import shutil
import signal
import subprocess
import tarfile
import time
from pathlib import Path
from typing import Any
from uuid import uuid4

from msgspec import Struct, field

from holdfast.testing.fake_containers.http import FakeRefusal

MARK = "FAKE_CONTAINER"
"""The environment variable that names the container of a process."""
LINKS = ("bin", "lib", "lib64", "sbin")


class FakeImage(Struct):
    id: str
    root: Path
    layers: int = 1
    env: list[str] = field(default_factory=list)
    labels: dict[str, str] = field(default_factory=dict)
    created: float = 0.0
    tags: list[str] = field(default_factory=list)


class FakeContainer(Struct):
    id: str
    name: str
    image: FakeImage
    root: Path
    body: dict[str, Any]
    running: bool = False
    paused: bool = False
    created: float = 0.0

    @property
    def env(self) -> list[str]:
        return self.image.env + (self.body.get("Env") or [])

    def kill(self) -> None:
        """Ends the container and all its processes."""
        self.running = self.paused = False
        mark = f"{MARK}={self.id}".encode()
        for folder in Path("/proc").iterdir():
            try:
                if folder.name.isdigit() and mark in (folder / "environ").read_bytes():
                    os.kill(int(folder.name), signal.SIGKILL)
            except (ProcessLookupError, FileNotFoundError, PermissionError):
                continue  # It has ended, or is not ours.


class FakeExec(Struct):
    container: FakeContainer
    body: dict[str, Any]
    code: int | None = None
    began: bool = False


class EngineState:
    """The state of the engine. It survives a restart of the engine, except for processes."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.images: list[FakeImage] = []
        self.containers: list[FakeContainer] = []
        self.execs: dict[str, FakeExec] = {}
        self.start_errors: list[str] = []
        """Error messages for the next commands. Each message is the answer to one command, which is
        not started."""
        root = self.new_folder()
        for name in ("usr", "proc", "dev", "tmp", "root", "etc"):
            (root / name).mkdir()
        for name in LINKS:
            (root / name).symlink_to(f"usr/{name}")
        self.add_image(root, "busybox:latest", env=["PATH=/bin"])

    def new_folder(self) -> Path:
        path = self.folder / uuid4().hex
        path.mkdir(parents=True)
        return path

    def add_image(self, root: Path, tag: str, **fields: Any) -> FakeImage:
        for other in self.images:
            if tag in other.tags:
                other.tags.remove(tag)
        image = FakeImage(f"sha256:{uuid4().hex}", root, created=time.time(), tags=[tag], **fields)
        self.images.append(image)
        return image

    def image(self, name: str) -> FakeImage:
        for image in self.images:
            if name == image.id or name in image.tags or f"{name}:latest" in image.tags:
                return image
        raise FakeRefusal(404, f"No such image: {name}")

    def container(self, name: str) -> FakeContainer:
        for container in self.containers:
            if name in (container.id, container.name):
                return container
        raise FakeRefusal(404, f"No such container: {name}")

    def add_stray(self, like: FakeContainer, name: str, labels: dict[str, str]) -> None:
        """Adds a container that no request created."""
        body = {**like.body, "Labels": labels}
        root = self.new_folder()
        self.containers.append(FakeContainer(uuid4().hex, name, like.image, root, body))

    def remove_image(self, name: str) -> None:
        image = self.image(name)
        if any(container.image is image for container in self.containers):
            raise FakeRefusal(409, "conflict: a container is using the image")
        self.images.remove(image)
        shutil.rmtree(image.root)

    def remove_container(self, container: FakeContainer) -> None:
        container.kill()
        self.containers.remove(container)
        shutil.rmtree(container.root)

    def copy(self, source: Path) -> Path:
        target = self.new_folder()
        subprocess.run(["cp", "-a", f"{source}/.", str(target)], check=True)  # noqa: S603, S607
        return target


def start_process(
    container: FakeContainer, body: dict[str, Any], *, has_input: bool
) -> "subprocess.Popen[bytes]":
    """Starts a command of a container as a process in its own session."""
    variables = dict(text.split("=", 1) for text in container.env + (body.get("Env") or []))
    variables.setdefault("HOME", "/root")
    argv = ["bwrap", "--bind", str(container.root), "/", "--ro-bind", "/usr", "/usr"]
    argv += ["--dev-bind", "/proc", "/proc", "--dev", "/dev", "--unshare-net", "--new-session"]
    argv += ["--clearenv", "--setenv", MARK, container.id]
    for name, value in variables.items():
        argv += ["--setenv", name, value]
    directory = body.get("WorkingDir") or container.body.get("WorkingDir") or "/"
    return subprocess.Popen(  # noqa: S603 - commands of tests
        [*argv, "--chdir", directory, *body["Cmd"]],
        stdin=subprocess.PIPE if has_input else subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


async def wait_for(process: "subprocess.Popen[bytes]") -> int:
    code = await asyncio.to_thread(process.wait)
    return code if code >= 0 else 128 - code


def pack(root: Path) -> bytes:
    body = io.BytesIO()
    with tarfile.open(fileobj=body, mode="w") as archive:
        archive.add(root, arcname=".")
    return body.getvalue()


def unpack(body: bytes, root: Path) -> None:
    with tarfile.open(fileobj=io.BytesIO(body)) as archive:
        archive.extractall(root, filter="tar")
