"""Makes the engine's description of a container from a `WorldSpec`.

The first process sleeps and collects orphans. It also ends at once when the engine stops it.
Commands come later, by exec. The engine keeps no log, because nobody would read it.
"""

from collections.abc import Mapping
from typing import Any

from holdfast.worlds.contract.spec import WorldNetwork, WorldSpec
from holdfast.worlds.contract.world import WorldLabel

FIRST_PROCESS = [
    "/bin/sh",
    "-c",
    'trap "exit 0" TERM; while :; do sleep 2147483647 & wait $!; done',
]
HOSTNAME = "world"
"""The host name of every world. It is always the same, because commands print it."""
NETWORKS = {WorldNetwork.NONE: "none", WorldNetwork.BRIDGE: "bridge"}


def container_body(spec: WorldSpec, image: str, label: WorldLabel) -> dict[str, Any]:
    body: dict[str, Any] = {
        "Image": image,
        "Hostname": HOSTNAME,
        "Entrypoint": FIRST_PROCESS,
        "Cmd": [],
        "Labels": label.as_labels(),
        "Env": variables(spec.env),
        "User": spec.user,
        "Healthcheck": {"Test": ["NONE"]},
        "StopTimeout": 1,
        "HostConfig": _host_config(spec),
    }
    if spec.workdir:
        body["WorkingDir"] = spec.workdir
    return body


def variables(env: Mapping[str, str]) -> list[str]:
    return [f"{name}={value}" for name, value in sorted(env.items())]


def _host_config(spec: WorldSpec) -> dict[str, Any]:
    config: dict[str, Any] = {
        "NetworkMode": NETWORKS[spec.network],
        "ReadonlyRootfs": spec.read_only,
        "LogConfig": {"Type": "none"},
        "RestartPolicy": {"Name": "no"},
        "Mounts": [
            {
                "Type": "bind",
                "Source": mount.source,
                "Target": mount.target,
                "ReadOnly": mount.read_only,
            }
            for mount in spec.mounts
        ],
    }
    if spec.read_only:
        config["Tmpfs"] = {"/tmp": "rw,exec,nosuid,mode=1777"}  # noqa: S108 - the container's
    if spec.cpus is not None:
        config["NanoCpus"] = int(spec.cpus * 1e9)
    if spec.memory is not None:
        config["Memory"] = config["MemorySwap"] = spec.memory
    if spec.pids is not None:
        config["PidsLimit"] = spec.pids
    if spec.disk is not None:
        config["StorageOpt"] = {"size": str(spec.disk)}
    return config
