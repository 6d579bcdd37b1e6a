"""WorldSpec: the description of a world.

An example is `docker:python:3.12-slim,memory=2g,network=bridge`. The text names the provider, then
an image or a folder with a Dockerfile (`docker:./image`), then settings. A spec is a value: equal
specs make equal worlds.
"""

import hashlib
import os
import re
from collections.abc import Callable, Mapping
from enum import StrEnum

import msgspec
from msgspec import Struct

from holdfast.records.task import Task
from holdfast.worlds.contract.failures import WorldRefused
from holdfast.worlds.contract.output import GIB, KIB, MIB

PROVIDERS = ("docker", "podman")
SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)i?b?", re.IGNORECASE)
UNITS = {"": 1, "k": KIB, "m": MIB, "g": GIB, "t": 1024 * GIB}
METADATA = "world"
EXAMPLE = "such as docker:python:3.12-slim or docker:./image,memory=2g,network=bridge"


class WorldNetwork(StrEnum):
    """The network that a world can reach."""

    NONE = "none"
    """Nothing. A black-box agent reaches the gateway, through a socket that its world has."""
    BRIDGE = "bridge"
    """Whatever the provider's default network reaches, usually the internet."""


class Mount(Struct, frozen=True):
    """A file or folder of this machine that a world sees."""

    source: str
    target: str
    read_only: bool = True


class WorldSpec(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The description of a world: its image, its limits, its network."""

    provider: str
    image: str = ""
    folder: str = ""
    """A folder with a Dockerfile, whose image is built. It replaces `image`."""
    cpus: float | None = None
    memory: int | None = None
    """Bytes of memory, without swap."""
    pids: int | None = 512
    """The most processes and threads, counted together."""
    disk: int | None = None
    """The most bytes that the world may write."""
    network: WorldNetwork = WorldNetwork.NONE
    user: str = ""
    read_only: bool = False
    """Whether only /tmp and mounts can be written."""
    mounts: tuple[Mount, ...] = ()
    env: Mapping[str, str] = {}
    workdir: str = ""
    platform: str = ""
    """The platform of the image, such as linux/arm64. By default, it is the provider's own."""

    @property
    def digest(self) -> bytes:
        """The spec as JSON. Two specs have the same bytes only if they are equal."""
        return msgspec.json.encode(self, order="sorted")

    @property
    def identity(self) -> str:
        """The spec as text, without variables and mounts, because they may be secret. If the spec
        has any, a digest of the whole spec is appended."""
        if not (self.env or self.mounts):
            return str(self)
        return f"{self} ({hashlib.sha256(self.digest).hexdigest()[:12]})"

    def __str__(self) -> str:
        settings = [f"{name}={text}" for name, text in _settings_of(self)]
        return ",".join([f"{self.provider}:{self.folder or self.image}", *settings])

    def __post_init__(self) -> None:
        for name in ("cpus", "memory", "pids", "disk"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise WorldRefused(f"a world with {name}={value} has nothing to work with")
        for mount in self.mounts:
            if not (os.path.isabs(mount.source) and os.path.isabs(mount.target)):
                raise WorldRefused(f"a mount needs two absolute paths: {mount.source!r}")


def _settings_of(spec: WorldSpec) -> list[tuple[str, str]]:
    plain = WorldSpec(provider=spec.provider)
    names = ("cpus", "memory", "pids", "disk", "network", "user", "workdir", "platform")
    changed = [name for name in names if getattr(spec, name) != getattr(plain, name)]
    return [(name, str(getattr(spec, name) or "none")) for name in changed] + (
        [("read_only", "true")] if spec.read_only else []
    )


def parse_spec(text: str) -> WorldSpec:
    provider, _, rest = text.partition(":")
    if provider not in PROVIDERS:
        known = ", ".join(f"{name}:" for name in PROVIDERS)
        raise WorldRefused(f"world {text!r}: the part before the colon is one of {known} {EXAMPLE}")
    place, *settings = rest.split(",")
    if not place:
        raise WorldRefused(f"world {text!r} names no image; write one {EXAMPLE}")
    is_folder = place.startswith((".", "/", "~"))
    where = (
        {"folder": os.path.abspath(os.path.expanduser(place))} if is_folder else {"image": place}
    )
    return msgspec.convert(
        {"provider": provider, **where, **dict(_setting(text, part) for part in settings)},
        WorldSpec,
    )


def as_spec(given: object) -> WorldSpec:
    """Returns `given` as a spec. It can be a text, a mapping of a spec's fields, or a spec."""
    if isinstance(given, str):
        return parse_spec(given)
    try:
        return msgspec.convert(given, WorldSpec, from_attributes=True)
    except msgspec.ValidationError as error:
        raise WorldRefused(f"{given!r:.200} is no world: {error}; write text {EXAMPLE}") from error


def spec_of(task: Task) -> WorldSpec | None:
    """Returns the spec in the task's metadata (`world`), or None if the task names no world."""
    given = (task.metadata or {}).get(METADATA)
    try:
        return None if given is None else as_spec(given)
    except WorldRefused as error:
        raise WorldRefused(f"task {task.id}: {error}") from error


def _setting(text: str, part: str) -> tuple[str, object]:
    name, equals, value = part.partition("=")
    read = _READERS.get(name.strip())
    if read is None or not equals:
        known = ", ".join(f"{name}=" for name in _READERS)
        raise WorldRefused(f"world {text!r}: {part!r} is no setting; there are {known}")
    try:
        return name.strip(), read(value.strip())
    except ValueError:
        raise WorldRefused(f"world {text!r}: {value!r} is no value of {name}") from None


def read_size(text: str) -> int:
    """Returns the number of bytes of a text such as 512m or 2GiB."""
    match = SIZE.fullmatch(text)
    if match is None:
        raise ValueError(text)
    return int(float(match[1]) * UNITS[match[2].lower()])


def _or_none(read: Callable[[str], object]) -> Callable[[str], object]:
    return lambda text: None if text == "none" else read(text)


def _flag(text: str) -> bool:
    if text not in ("true", "false"):
        raise ValueError(text)
    return text == "true"


_READERS: dict[str, Callable[[str], object]] = {
    "cpus": _or_none(float),
    "memory": _or_none(read_size),
    "pids": _or_none(int),
    "disk": _or_none(read_size),
    "network": WorldNetwork,
    "user": str,
    "read_only": _flag,
    "workdir": str,
    "platform": str,
}
