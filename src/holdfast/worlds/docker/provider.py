"""ContainerProvider: makes, finds and removes containers and their snapshots.

A container's name is its world's name. So it is safe to repeat a `create` whose answer was lost:
the engine refuses a second container with this name, and the first container is used.
"""

from collections.abc import Mapping
from typing import Any

from holdfast.worlds.contract.failures import ProviderDown, SnapshotGone, WorldGone, WorldRefused
from holdfast.worlds.contract.spec import WorldNetwork, WorldSpec
from holdfast.worlds.contract.world import (
    PREFIX,
    Capabilities,
    Progress,
    WorldInfo,
    WorldLabel,
    check_supported,
    label_of,
    no_progress,
)
from holdfast.worlds.docker.address import ContainerEngine, container_engine
from holdfast.worlds.docker.api import ContainerApi, EngineRefusal
from holdfast.worlds.docker.container import SNAPSHOTS, Container, remove_container
from holdfast.worlds.docker.creation import container_body
from holdfast.worlds.docker.images import Images

PATIENT_SECONDS = 600.0
"""The most seconds for creating or starting a container on a busy engine."""
SETTINGS = frozenset({"folder", "user", "read_only", "mounts", "platform"})
NAME_TAKEN = "is already in use"
"""How Podman says what Docker says with the status 409."""
QUOTA_DRIVERS = ("btrfs", "zfs")


class ContainerProvider:
    """Provides worlds that are containers of one engine, Docker or Podman."""

    def __init__(self, engine: str = "docker", address: ContainerEngine | str | None = None):
        if not isinstance(address, ContainerEngine):
            address = container_engine(engine, address)
        self._api = ContainerApi(address)
        self._images = Images(self._api)
        self._capabilities: Capabilities | None = None

    @property
    def name(self) -> str:
        return str(self._api.address)

    @property
    def capabilities(self) -> Capabilities:
        assert self._capabilities is not None, "check() was not called"
        return self._capabilities

    async def close(self) -> None:
        await self._api.close()

    async def check(self, spec: WorldSpec) -> None:
        if self._capabilities is None:
            try:
                networks = await self._api.get("/networks")
                self._capabilities = _capabilities(await self._api.get("/info"), networks)
            except EngineRefusal as error:
                raise ProviderDown(f"{self.name}: {error.message}") from error
        check_supported(spec, self._capabilities, self.name)

    async def prepare(self, spec: WorldSpec, *, progress: Progress = no_progress) -> None:
        await self.check(spec)
        await self._images.prepare(spec, progress)

    # --- worlds

    async def create(self, spec: WorldSpec, label: WorldLabel) -> Container:
        image = await self._images.reference(spec)
        try:
            return await self._make(spec, image, label)
        except EngineRefusal as error:
            raise self._refused(error, f"image {image}") from error

    async def restore(self, snapshot: str, spec: WorldSpec, label: WorldLabel) -> Container:
        try:
            return await self._make(spec, snapshot, label)
        except EngineRefusal as error:
            if error.status == 404:
                raise SnapshotGone(f"{self.name} has no snapshot {snapshot}") from error
            raise self._refused(error, f"snapshot {snapshot}") from error

    async def _make(self, spec: WorldSpec, image: str, label: WorldLabel) -> Container:
        name = f"holdfast-{label.world}"
        body = container_body(spec, image, label)
        query = {"name": name} | ({"platform": spec.platform} if spec.platform else {})
        try:
            answer = await self._call("/containers/create", query, body)
        except EngineRefusal as error:
            if error.status != 409 and NAME_TAKEN not in error.message:
                raise
            await self._check_ours(name, label)
        else:
            await self._check_limits(name, answer.get("Warnings") or [])
        try:
            await self._call(f"/containers/{name}/start", {})
        except EngineRefusal as error:
            # An engine that was killed during a start may refuse this container's start for ever.
            # Nothing ever ran in the container, so the next try makes a new one.
            if error.status >= 500:
                await self.destroy(name)
            raise
        return self._container(name)

    async def _call(self, path: str, query: Mapping[str, object], body: object = None) -> Any:
        return await self._api.call("POST", path, body=body, query=query, seconds=PATIENT_SECONDS)

    async def _check_ours(self, name: str, label: WorldLabel) -> None:
        container = await self._inspect(name)
        if label_of(container["Config"]["Labels"] or {}) != label:
            raise WorldRefused(f"{self.name} has another container named {name}")

    async def _check_limits(self, name: str, warnings: list[str]) -> None:
        """Destroys a new container and raises `WorldRefused` if the engine ignores one of its
        limits."""
        ignored = [warning for warning in warnings if "discarded" in warning]
        if ignored:
            await self.destroy(name)
            raise WorldRefused(f"{self.name} ignores a limit: {ignored[0]}")

    def _refused(self, error: EngineRefusal, what: str) -> Exception:
        message = f"{self.name} cannot start a world of {what}: {error.message}"
        if "/bin/sh" in error.message:
            return WorldRefused(f"{message}; an image for worlds needs /bin/sh")
        return WorldRefused(message) if error.status in (400, 404) else ProviderDown(message)

    async def attach(self, handle: str) -> Container:
        container = self._container(handle)
        if not await container.is_running():
            raise WorldGone(f"{self.name}: {handle} does not run")
        return container

    async def destroy(self, handle: str) -> None:
        await remove_container(self._api, handle)

    async def discard(self, snapshot: str) -> None:
        await self._images.remove(snapshot)

    def _container(self, handle: str) -> Container:
        return Container(self._api, self._images, handle)

    async def _inspect(self, handle: str) -> Any:
        return await self._api.get(f"/containers/{handle}/json")

    # --- what there is

    async def worlds(self, *, journal: str = "", world: str = "") -> list[WorldInfo]:
        rows = await self._rows("/containers/json", journal, world)
        infos = [
            _info(row["Names"][0].lstrip("/"), row, running=row["State"] == "running")
            for row in rows
        ]
        return [info for info in infos if info is not None]

    async def snapshots(self, *, journal: str = "", world: str = "") -> list[WorldInfo]:
        rows = await self._rows("/images/json", journal, world)
        infos = [_info(_reference(row), row, running=False, is_snapshot=True) for row in rows]
        # Newest first: it stands on the older ones.
        return sorted(
            (info for info in infos if info is not None), key=lambda i: i.created, reverse=True
        )

    async def _rows(self, path: str, journal: str, world: str) -> Any:
        wanted = {"journal": journal, "world": world}
        labels = [f"{PREFIX}{name}={value}" for name, value in wanted.items() if value]
        filters = {"label": labels or [f"{PREFIX}world"]}
        try:
            return await self._api.get(path, all="containers" in path, filters=filters)
        except EngineRefusal as error:
            raise ProviderDown(f"{self.name}: {error.message}") from error


def _info(
    handle: str, row: Mapping[str, Any], *, running: bool, is_snapshot: bool = False
) -> WorldInfo | None:
    label = label_of(row.get("Labels") or {})
    if label is None:
        return None
    name = handle.rpartition(":")[2] if is_snapshot else ""
    return WorldInfo(handle, label, running, float(row.get("Created") or 0), name)


def _reference(row: Mapping[str, Any]) -> str:
    """Returns the name of a snapshot, without the registry that Podman puts before it."""
    tags = [tag for tag in row.get("RepoTags") or [] if not tag.startswith("<none>")]
    return SNAPSHOTS + tags[0].rpartition(SNAPSHOTS)[2] if tags else str(row["Id"])


def _capabilities(info: Mapping[str, Any], networks: Any) -> Capabilities:
    limits = {
        "cpus": bool(info.get("CpuCfsQuota") or info.get("CPUCfsQuota")),
        "memory": bool(info.get("MemoryLimit")),
        "pids": bool(info.get("PidsLimit")),
        "disk": _has_quotas(info),
    }
    names = {network["Name"] for network in networks}
    bridges = {WorldNetwork.BRIDGE} if names & {"bridge", "podman"} else set()
    return Capabilities(
        snapshots=True,
        attach=True,
        networks=frozenset({WorldNetwork.NONE} | bridges),
        limits=frozenset(name for name, supported in limits.items() if supported),
        settings=SETTINGS,
    )


def _has_quotas(info: Mapping[str, Any]) -> bool:
    """Returns whether the engine's storage can limit a container's disk. overlay2 can if it is on
    XFS."""
    driver, status = str(info.get("Driver")), info.get("DriverStatus") or []
    backing = {str(name): str(value) for name, value in status}.get("Backing Filesystem", "")
    return driver in QUOTA_DRIVERS or (driver == "overlay2" and backing == "xfs")
