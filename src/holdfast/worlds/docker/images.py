"""Images: pulls and builds the images of worlds, and makes the images of snapshots.

A built image is named after the content of its folder, so equal folders are built once. A snapshot
is a commit of a container. A world that was restored many times has many layers, and an engine
allows 127. So from `MAX_LAYERS` on, a snapshot is exported and imported as one layer.
"""

import asyncio
import hashlib
import io
import os
import tarfile
from collections.abc import AsyncIterator, Mapping
from typing import Any

from msgspec import Struct

from holdfast.worlds.contract.failures import ProviderDown, WorldRefused
from holdfast.worlds.contract.spec import WorldSpec
from holdfast.worlds.contract.world import Progress
from holdfast.worlds.docker.api import ContainerApi, EngineRefusal

MAX_LAYERS = 64
PULL_SECONDS = 3600.0
BUILT = "holdfast/build"
SHOWN_LINES = 5
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64", "armv7l": "arm", "i686": "386"}


class BuildContext(Struct, frozen=True):
    archive: bytes
    reference: str


class Images:
    """The images of one engine. Each image is prepared once, however many worlds need it."""

    def __init__(self, api: ContainerApi):
        self._api = api
        self._ready: set[str] = set()
        self._preparing = asyncio.Lock()

    async def reference(self, spec: WorldSpec) -> str:
        """Returns the name of the spec's image."""
        return (await _context_of(spec.folder)).reference if spec.folder else spec.image

    async def prepare(self, spec: WorldSpec, progress: Progress) -> None:
        async with self._preparing:
            if await self.reference(spec) not in self._ready:
                await self._prepare(spec, progress)

    async def _prepare(self, spec: WorldSpec, progress: Progress) -> None:
        name = await self.reference(spec)
        image = await self.inspect(name)
        if image is None:
            await (self._build if spec.folder else self._pull)(spec, progress)
            image = await self.inspect(name)
        if image is None:
            raise WorldRefused(f"{self._api.address} has no image {name} after preparing it")
        await self._check_architecture(spec, name, image)
        self._ready.add(name)

    async def inspect(self, name: str) -> dict[str, Any] | None:
        try:
            image: dict[str, Any] = await self._api.get(f"/images/{name}/json")
        except EngineRefusal as error:
            if error.status == 404:
                return None
            raise ProviderDown(f"{self._api.address}: {error.message}") from error
        return image

    async def _pull(self, spec: WorldSpec, progress: Progress) -> None:
        name, tag = _split(spec.image)
        query = {"fromImage": name, "tag": tag, "platform": spec.platform}
        what = f"{self._api.address} has no image {spec.image} and cannot pull it"
        progress(f"pulling {spec.image}")
        await self._follow("/images/create", query, what, progress)

    async def _build(self, spec: WorldSpec, progress: Progress) -> None:
        context = await _context_of(spec.folder)
        query = {"t": context.reference, "platform": spec.platform, "rm": True, "forcerm": True}
        progress(f"building {spec.folder}")
        what = f"the Dockerfile in {spec.folder} fails"
        await self._follow("/build", query, what, progress, context.archive)

    async def _follow(
        self,
        path: str,
        query: Mapping[str, object],
        what: str,
        progress: Progress,
        data: object = None,
    ) -> None:
        """Follows a pull or a build to its end. Raises `WorldRefused`, with the last lines, if it
        fails."""
        last: list[str] = []
        query = {name: value for name, value in query.items() if value != ""}
        try:
            async for message in self._api.lines(
                path, query=query, data=data, seconds=PULL_SECONDS
            ):
                if error := message.get("error"):
                    raise WorldRefused(": ".join([what, *last, str(error).strip()]))
                if line := _line_of(message):
                    last = [*last, line][-SHOWN_LINES:]
                    progress(line)
        except EngineRefusal as error:
            raise WorldRefused(f"{what}: {error.message}") from error

    async def _check_architecture(
        self, spec: WorldSpec, name: str, image: Mapping[str, Any]
    ) -> None:
        theirs = str((await self._api.get("/info")).get("Architecture", ""))
        engine, own = ARCHITECTURES.get(theirs, theirs), image.get("Architecture") or ""
        if own and engine and own != engine and not spec.platform:
            raise WorldRefused(
                f"image {name} is for {own}, and {self._api.address} runs {engine}; give an image "
                f"for {engine}, or write platform=linux/{own} if the engine emulates it"
            )

    # --- snapshots

    async def layers(self, name: str) -> int:
        image = await self.inspect(name) or {}
        return len((image.get("RootFS") or {}).get("Layers") or [])

    async def commit(self, container: str, repository: str, tag: str) -> None:
        await self._api.post(
            "/commit", {}, container=container, repo=repository, tag=tag, pause=True
        )

    async def squash(
        self, container: str, config: Mapping[str, Any], repository: str, tag: str
    ) -> None:
        """Makes a snapshot with only one layer. The container is paused meanwhile."""
        await self._api.post(f"/containers/{container}/pause")
        try:
            query = {
                "fromSrc": "-",
                "repo": repository,
                "tag": tag,
                "changes": "\n".join(_changes(config)),
            }
            await self._follow(
                "/images/create",
                query,
                f"the snapshot of {container} fails",
                lambda _: None,
                self._exported(container),
            )
        finally:
            await self._api.post(f"/containers/{container}/unpause")

    def _exported(self, container: str) -> AsyncIterator[bytes]:
        return self._api.stream(f"/containers/{container}/export", seconds=PULL_SECONDS)

    async def remove(self, name: str) -> None:
        """Removes an image. An image that is still in use stays."""
        try:
            await self._api.delete(f"/images/{name}")
        except EngineRefusal as error:
            if error.status not in (404, 409):
                raise ProviderDown(f"{self._api.address}: {error.message}") from error


def _split(image: str) -> tuple[str, str]:
    """Splits a reference into an image's name and tag. A reference with a digest is returned whole,
    with "" as its tag."""
    if "@" in image:
        return image, ""
    name, colon, tag = image.rpartition(":")
    return (name, tag) if colon and "/" not in tag else (image, "latest")


def _line_of(message: Mapping[str, Any]) -> str:
    text = str(message.get("stream") or message.get("status") or "").strip()
    return f"{message['id']}: {text}" if text and "id" in message else text


def _changes(config: Mapping[str, Any]) -> list[str]:
    """Returns a container's settings as instructions of a Dockerfile, because an imported image has
    no settings."""
    lines = [f"ENV {name}={_quoted(value)}" for name, value in _pairs(config.get("Env") or [])]
    labels = sorted((config.get("Labels") or {}).items())
    lines += [f"LABEL {name}={_quoted(value)}" for name, value in labels]
    lines += [f"WORKDIR {config['WorkingDir']}"] if config.get("WorkingDir") else []
    return lines + ([f"USER {config['User']}"] if config.get("User") else [])


def _pairs(variables: list[str]) -> list[tuple[str, str]]:
    return [(name, value) for name, _, value in (text.partition("=") for text in variables)]


def _quoted(value: str) -> str:
    plain = value.replace("\\", "\\\\").replace('"', '\\"').replace("$", "\\$")
    return f'"{plain}"'


async def _context_of(folder: str) -> BuildContext:
    if not os.path.isfile(os.path.join(folder, "Dockerfile")):
        raise WorldRefused(f"there is no Dockerfile in {folder}")
    return await asyncio.to_thread(_pack, folder)


def _pack(folder: str) -> BuildContext:
    """Returns the folder as an archive whose bytes depend only on names, modes and contents."""
    body = io.BytesIO()
    with tarfile.open(fileobj=body, mode="w") as archive:
        archive.add(folder, arcname=".", filter=_anonymous)
    digest = hashlib.sha256(body.getvalue()).hexdigest()[:24]
    return BuildContext(body.getvalue(), f"{BUILT}:{digest}")


def _anonymous(info: tarfile.TarInfo) -> tarfile.TarInfo:
    info.uid = info.gid = 0
    info.uname = info.gname = ""
    info.mtime = 0
    return info
