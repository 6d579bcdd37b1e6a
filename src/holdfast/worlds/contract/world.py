"""World: a separate machine in which a trajectory's commands run, and its provider.

A provider makes worlds, finds them again, and keeps snapshots. It knows nothing of journals:
`WorldLabel` tells later processes which trajectory a world belongs to. Every method may be
cancelled, and may raise `ProviderDown` when it is unknown whether the call took effect. Repeating
any call is safe: `create` and `restore` take the world's name, and destroying a world that is gone
succeeds.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from msgspec import Struct

from holdfast.worlds.contract.failures import WorldRefused
from holdfast.worlds.contract.output import KIB, MIB
from holdfast.worlds.contract.spec import WorldNetwork, WorldSpec

PREFIX = "dev.holdfast."
NO_VARIABLES: Mapping[str, str] = {}
OUTPUT_LIMIT = 64 * KIB
FILE_LIMIT = 64 * MIB
COMMAND_SECONDS = 120.0


class Capabilities(Struct, frozen=True, kw_only=True):
    """What a provider can do."""

    snapshots: bool = False
    """Whether `snapshot` and `restore` work, and with them `fork`."""
    attach: bool = False
    """Whether a world outlives the process that made it."""
    networks: frozenset[WorldNetwork] = frozenset({WorldNetwork.NONE})
    limits: frozenset[str] = frozenset()
    """The limits that the provider enforces, out of cpus, memory, pids and disk."""
    settings: frozenset[str] = frozenset()
    """The settings that the provider supports, out of folder, user, read_only, mounts and
    platform."""


class WorldLabel(Struct, frozen=True, kw_only=True):
    """Names the owner of a world. The provider keeps the label with the world and its snapshots."""

    world: str
    """The world's name, which no other world ever has."""
    journal: str = ""
    run: str = ""
    trajectory: str = ""
    epoch: int = 0

    def as_labels(self) -> dict[str, str]:
        return {f"{PREFIX}{name}": str(getattr(self, name)) for name in self.__struct_fields__}


def label_of(labels: Mapping[str, str]) -> WorldLabel | None:
    """Reads a world's label from the labels at the provider. Returns None if Holdfast did not write
    them."""
    texts = {name: labels.get(PREFIX + name, "") for name in WorldLabel.__struct_fields__}
    epoch = texts.pop("epoch")
    return WorldLabel(**texts, epoch=int(epoch or 0)) if texts["world"] else None


class ExecResult(Struct, frozen=True):
    """The result of a command. A command that fails, or is killed at its deadline, also has a
    result and raises no error."""

    exit_code: int
    output: str
    """Standard output and standard error, in the order in which they were written."""
    truncated: bool = False
    """Whether the middle of the output is left out."""
    timed_out: bool = False
    """Whether the command was killed at its deadline, with all processes that it started."""

    @property
    def ok(self) -> bool:
        return self.exit_code == 0 and not self.timed_out


class FileInfo(Struct, frozen=True):
    path: str
    size: int
    mode: int
    is_folder: bool = False
    is_link: bool = False


class WorldInfo(Struct, frozen=True):
    """A world or a snapshot that the provider has."""

    handle: str
    label: WorldLabel
    running: bool = True
    created: float = 0.0
    """Seconds since 1970."""
    snapshot: str = ""
    """The name that a snapshot was kept under; "" for a world."""

    @property
    def is_snapshot(self) -> bool:
        return bool(self.snapshot)

    @property
    def name(self) -> str:
        return self.snapshot or self.label.world


class Use(Struct, frozen=True):
    """The resources that a world has used so far."""

    cpu_seconds: float = 0.0
    written: int = 0
    """The bytes of files that differ from the world's image."""


class World(Protocol):
    """A running world."""

    @property
    def handle(self) -> str: ...

    async def exec(
        self,
        command: str | Sequence[str],
        *,
        stdin: bytes = b"",
        timeout: float = COMMAND_SECONDS,
        output: int = OUTPUT_LIMIT,
        env: Mapping[str, str] = NO_VARIABLES,
        cwd: str = "",
        user: str = "",
    ) -> ExecResult:
        """Runs a command and returns its result when it has ended.

        A text is run by bash, or by sh if the world has no bash. A list is run as a program with
        its arguments. Processes that the command leaves in the background continue until the world
        ends. If the call is cancelled, the command is killed with all processes that it started.
        """
        ...

    async def read(self, path: str, *, most: int = FILE_LIMIT) -> bytes:
        """Returns the content of a file. Raises `FileNotFoundError`, or another `OSError` with the
        reason."""
        ...

    async def write(self, path: str, content: bytes, *, mode: int | None = None) -> None:
        """Writes a file, which replaces a file at `path`. Makes missing folders. Raises `OSError`
        with the reason."""
        ...

    async def files(self, path: str) -> list[FileInfo]:
        """Returns the entries of a folder, sorted by name. Raises `OSError` with the reason."""
        ...

    async def snapshot(self, name: str) -> str:
        """Takes a snapshot of the world's files under a name. Returns the snapshot's handle."""
        ...

    async def use(self) -> Use: ...
    async def destroy(self) -> None: ...


Progress = Callable[[str], None]
"""Called with a line of text about the progress of a pull or a build."""


def no_progress(_: str) -> None:
    pass


class WorldProvider(Protocol):
    @property
    def name(self) -> str:
        """The provider and its address, for messages."""
        ...

    @property
    def capabilities(self) -> Capabilities:
        """What the provider can do. It is known after the first `check`."""
        ...

    async def check(self, spec: WorldSpec) -> None:
        """Raises `WorldRefused` if the provider cannot make such a world, and `ProviderDown` if it
        does not answer."""
        ...

    async def prepare(self, spec: WorldSpec, *, progress: Progress = no_progress) -> None:
        """Pulls or builds the spec's image if the provider does not have it."""
        ...

    async def create(self, spec: WorldSpec, label: WorldLabel) -> World:
        """Returns a running world. If a world with the label's name exists, returns that world."""
        ...

    async def attach(self, handle: str) -> World:
        """Returns the running world with this handle. Raises `WorldGone` if it does not run."""
        ...

    async def restore(self, snapshot: str, spec: WorldSpec, label: WorldLabel) -> World:
        """Returns a new world with the files of a snapshot. Raises `SnapshotGone` if the provider
        does not have the snapshot."""
        ...

    async def destroy(self, handle: str) -> None: ...
    async def discard(self, snapshot: str) -> None:
        """Removes a snapshot. The snapshot may stay while a world that was made from it exists."""
        ...

    async def worlds(self, *, journal: str = "", world: str = "") -> list[WorldInfo]:
        """Returns the worlds whose labels have these values, running or not. An empty value matches
        all."""
        ...

    async def snapshots(self, *, journal: str = "", world: str = "") -> list[WorldInfo]: ...
    async def close(self) -> None: ...


async def fork(provider: WorldProvider, world: World, spec: WorldSpec, label: WorldLabel) -> World:
    """Returns a new world with the files that `world` has now."""
    snapshot = await world.snapshot(f"fork-{label.world}")
    try:
        return await provider.restore(snapshot, spec, label)
    finally:
        await provider.discard(snapshot)


def check_supported(spec: WorldSpec, can: Capabilities, provider: str) -> None:
    """Raises `WorldRefused` if the provider cannot fulfil the spec."""
    if spec.network not in can.networks:
        known = ", ".join(sorted(can.networks))
        raise WorldRefused(f"{provider} has no network={spec.network}; it has {known}")
    for name in ("cpus", "memory", "pids", "disk"):
        if getattr(spec, name) is not None and name not in can.limits:
            raise WorldRefused(
                f"{provider} cannot limit {name}: leave it out, or write {name}=none"
            )
    for name in ("folder", "user", "read_only", "mounts", "platform"):
        if getattr(spec, name) and name not in can.settings:
            raise WorldRefused(f"{provider} does not know the setting {name}")
