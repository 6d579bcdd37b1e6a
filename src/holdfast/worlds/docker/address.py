"""The address at which a container engine listens: a Unix socket or an HTTP address."""

import os
import stat
from urllib.parse import urlsplit

from msgspec import Struct

from holdfast.worlds.contract.failures import ProviderDown, WorldRefused

VARIABLES = {"docker": "DOCKER_HOST", "podman": "CONTAINER_HOST"}


class ContainerEngine(Struct, frozen=True):
    """The address of a container engine. Either `socket` or `host` is set."""

    engine: str
    socket: str = ""
    host: str = ""
    port: int = 0

    def __str__(self) -> str:
        place = f"unix://{self.socket}" if self.socket else f"tcp://{self.host}:{self.port}"
        return f"{self.engine} at {place}"

    @property
    def base(self) -> str:
        return f"http://{self.host}:{self.port}" if self.host else "http://localhost"

    def unreachable(self, error: OSError) -> Exception:
        """Returns the error for a connection that failed."""
        if isinstance(error, PermissionError):
            return WorldRefused(
                f"no right to use {self}: add yourself to the group of its socket, or run as root"
            )
        variable = VARIABLES[self.engine]
        return ProviderDown(
            f"{self} does not answer ({error.strerror or error}); start it, or set {variable}"
        )


def container_engine(engine: str, text: str | None = None) -> ContainerEngine:
    """Parses an address such as unix:///var/run/docker.sock. Without `text`, this is the address in
    the engine's environment variable (such as `DOCKER_HOST`) or, if that is not set, the usual
    socket."""
    text = text or os.environ.get(VARIABLES[engine]) or f"unix://{_usual_socket(engine)}"
    parts = urlsplit(text)
    if parts.scheme == "unix" and parts.path:
        return ContainerEngine(engine, socket=parts.path)
    if parts.scheme in ("tcp", "http") and parts.hostname and parts.port:
        return ContainerEngine(engine, host=parts.hostname, port=parts.port)
    raise WorldRefused(
        f"{VARIABLES[engine]}={text}: give unix:///path/to/socket or tcp://host:port; "
        "for another machine, forward its socket with ssh -L"
    )


def _usual_socket(engine: str) -> str:
    if engine == "docker":
        return "/var/run/docker.sock"
    own = os.path.join(os.environ.get("XDG_RUNTIME_DIR", ""), "podman/podman.sock")
    return own if _is_socket(own) else "/run/podman/podman.sock"


def _is_socket(path: str) -> bool:
    try:
        return stat.S_ISSOCK(os.stat(path).st_mode)
    except OSError:
        return False
