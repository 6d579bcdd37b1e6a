"""Reads Harbor tasks: folders with task.toml, instruction.md, environment, tests and solution.

Holdfast refuses what it cannot do: tasks of several steps, docker compose, Windows, GPUs, MCP
servers, health checks, lists of allowed hosts, and a verifier in a container of its own. It does
not enforce `storage_mb`.
"""

import hashlib
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec
from msgspec import Struct, field

from holdfast.records.errors import UsageError
from holdfast.worlds.contract.output import MIB
from holdfast.worlds.contract.spec import METADATA

PREFIX = "harbor:"
TASK = "harbor"
"""The key in a task's metadata that describes the Harbor task."""
CANARY = re.compile(r"(<!--.*canary.*-->|#.*canary.*)", re.IGNORECASE)
NETWORKS = {"public": "bridge", "no-network": "none"}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)([KMG])", re.IGNORECASE)
_MEGABYTES = {"K": 1 / 1024, "M": 1.0, "G": 1024.0}


class HarborTask(Struct, frozen=True, kw_only=True):
    """What the agent and the verifier of a Harbor task need."""

    folder: str
    digest: str
    """A digest of the folder's files, so that a changed task is another task."""
    env: dict[str, str] = {}
    """The variables of all processes. A value such as `${NAME:-default}` is a variable of this
    machine."""
    agent_seconds: float | None = None
    solution_env: dict[str, str] = {}
    verifier_env: dict[str, str] = {}
    verifier_seconds: float = 600.0
    verifier_user: str = ""


class _Phase(Struct, kw_only=True):
    timeout_sec: float | None = None
    user: str | int | None = None
    env: dict[str, str] = {}
    network_mode: str | None = None
    allowed_hosts: list[str] | None = None
    environment_mode: str | None = None
    environment: object = None
    collect: list[object] = []


class _Environment(Struct, kw_only=True):
    docker_image: str | None = None
    os: str = "linux"
    cpus: float | None = None
    memory_mb: float | None = None
    memory: str | None = None
    gpus: int | None = None
    tpu: object = None
    mcp_servers: list[object] = []
    env: dict[str, str] = {}
    skills_dir: str | None = None
    healthcheck: object = None
    workdir: str | None = None
    network_mode: str = "public"
    allow_internet: bool | None = None


class _Config(Struct, kw_only=True):
    environment: _Environment = field(default_factory=_Environment)
    agent: _Phase = field(default_factory=_Phase)
    verifier: _Phase = field(default_factory=_Phase)
    solution: _Phase = field(default_factory=_Phase)
    metadata: dict[str, object] = {}
    steps: list[object] | None = None


def is_harbor(source: object) -> bool:
    return isinstance(source, str) and source.startswith(PREFIX)


def read_harbor(source: str) -> list[dict[str, object]]:
    """Returns one row for each task in `harbor:FOLDER`, which is a task or a folder of tasks."""
    folder = Path(source.removeprefix(PREFIX)).expanduser()
    if not folder.is_dir():
        raise UsageError(f"{source}: {folder} is not a folder")
    if (folder / "task.toml").is_file():
        return [_row(folder)]
    return [_row(each) for each in sorted(folder.iterdir()) if (each / "task.toml").is_file()]


def _row(folder: Path) -> dict[str, object]:
    config = _config(folder)
    if problem := _unsupported(folder, config):
        raise UsageError(f"Harbor task {folder}: Holdfast cannot run {problem}")
    for name in ("instruction.md", "tests/test.sh"):
        if not (folder / name).is_file():
            raise UsageError(f"Harbor task {folder} has no {name}")
    agent, verifier, env = config.agent, config.verifier, config.environment
    task = HarborTask(
        folder=str(folder.resolve()),
        digest=_digest(folder),
        env=env.env,
        agent_seconds=agent.timeout_sec,
        solution_env=config.solution.env,
        verifier_env=verifier.env,
        verifier_seconds=verifier.timeout_sec or 600.0,
        # The container's own user is the agent's.
        verifier_user=str(verifier.user or ("" if agent.user is None else "root")),
    )
    return {
        "id": folder.resolve().name,
        "prompt": _instruction(folder),
        "metadata": {
            **config.metadata,
            METADATA: _world(folder, config),
            TASK: msgspec.to_builtins(task),
        },
    }


def _config(folder: Path) -> _Config:
    path = folder / "task.toml"
    try:
        return msgspec.convert(tomllib.loads(path.read_text()), _Config)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, msgspec.ValidationError) as error:
        raise UsageError(f"{path}: {error}") from error


def _unsupported(folder: Path, config: _Config) -> str:
    env, verifier = config.environment, config.verifier
    phases = {config.agent.network_mode, verifier.network_mode} - {None}
    problems = {
        "tasks of several steps": config.steps,
        "docker compose": (folder / "environment/docker-compose.yaml").exists(),
        f"containers of {env.os}": env.os != "linux",
        "GPUs and TPUs": env.gpus or env.tpu,
        "MCP servers": env.mcp_servers,
        "skills": env.skills_dir,
        "health checks": env.healthcheck,
        "an earlier trajectory": (folder / "trajectory.json").exists(),
        "a verifier in a container of its own": verifier.environment
        or verifier.environment_mode == "separate",
        "collect commands": verifier.collect,
        f"network_mode = {env.network_mode!r}": env.network_mode not in NETWORKS,
        "different networks for agent and verifier": phases - {env.network_mode},
    }
    return next((name for name, is_wanted in problems.items() if is_wanted), "")


def _world(folder: Path, config: _Config) -> Mapping[str, object]:
    env = config.environment
    world: dict[str, object] = {"provider": "docker", "pids": None}
    if env.docker_image:
        world["image"] = env.docker_image
    elif (folder / "environment/Dockerfile").is_file():
        world["folder"] = str((folder / "environment").resolve())
    else:
        raise UsageError(f"Harbor task {folder} has no environment/Dockerfile and no docker_image")
    offline = env.allow_internet is False
    world["network"] = "none" if offline else NETWORKS[env.network_mode]
    if (megabytes := env.memory_mb or _megabytes(env.memory)) is not None:
        world["memory"] = int(megabytes * MIB)
    optional = {"cpus": env.cpus, "workdir": env.workdir, "user": config.agent.user}
    world |= {name: value for name, value in optional.items() if value is not None}
    if "user" in world:
        world["user"] = str(world["user"])
    return world


def _megabytes(size: str | None) -> float | None:
    if size is None:
        return None
    match = _SIZE.fullmatch(size.strip().removesuffix("b").removesuffix("B"))
    if match is None:
        raise UsageError(f"memory = {size!r} is not a size such as 512M or 2G")
    return float(match[1]) * _MEGABYTES[match[2].upper()]


def _instruction(folder: Path) -> str:
    """Returns the instruction without the lines at its beginning that mark it as part of a
    benchmark."""
    lines = (folder / "instruction.md").read_text().split("\n")
    marked = 0
    while marked < len(lines) and CANARY.fullmatch(lines[marked].strip()):
        marked += 1
    text = "\n".join(lines[marked:]).lstrip("\n")
    if not text.strip():
        raise UsageError(f"Harbor task {folder} has an empty instruction.md")
    return text


def _digest(folder: Path) -> str:
    digest = hashlib.sha256()
    for path in _files(folder):
        digest.update(str(path.relative_to(folder)).encode("utf-8", "surrogateescape") + b"\0")
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:32]


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in sorted(folder.rglob("*")) if path.is_file())
