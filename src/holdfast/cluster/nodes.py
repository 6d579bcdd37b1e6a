"""Checks the machines of a cluster for everything that a run needs.

A small task on each node checks this at the start. Otherwise the first trajectory on a bad node
would fail.
"""

import asyncio
import importlib.util
import platform
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from holdfast import __version__
from holdfast.cluster.connection import resolves
from holdfast.cluster.host_actor import this_place
from holdfast.cluster.messages import Place
from holdfast.records.errors import UsageError

PROBE_SECONDS = 180.0
EXTRAS = {
    "psycopg": "postgres",
    "tokenizers": "renderers",
    "renderers": "renderers",
    "jinja2": "renderers",
    "gymnasium": "gym",
    "mcp": "mcp",
    "openenv": "openenv",
    "pydantic": "evaluation",
}


class Node(Struct, frozen=True):
    """A node of the cluster that is alive."""

    id: str
    address: str
    cpus: float
    gpus: float
    host: str = ""


class NodeProbe(Struct, frozen=True):
    """A question to a node, or the node's answer."""

    modules: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    place: Place | None = None


def live_nodes(ray: Any) -> list[Node]:
    return [
        Node(
            node["NodeID"],
            node["NodeManagerAddress"],
            node["Resources"].get("CPU", 0.0),
            node["Resources"].get("GPU", 0.0),
        )
        for node in ray.nodes()
        if node["Alive"]
    ]


def check_resources(nodes: Sequence[Node], *, what: str, cpus: float, gpus: float) -> None:
    """Raises `UsageError` if no node has this many CPUs and GPUs for one process. Error messages
    call the process by the name in `what`."""
    if any(node.cpus >= cpus and node.gpus >= gpus for node in nodes):
        return
    most_cpus = max((node.cpus for node in nodes), default=0.0)
    most_gpus = max((node.gpus for node in nodes), default=0.0)
    raise UsageError(
        f"no node of the cluster has room for {what} with {cpus:g} CPUs and {gpus:g} GPUs: the "
        f"largest of {len(nodes)} has {most_cpus:g} CPUs, and at most {most_gpus:g} GPUs are on one"
    )


def check_gpus(nodes: Sequence[Node], *, option: str, wanted: float) -> None:
    """Raises `UsageError` if more GPUs are requested than exist."""
    existing = sum(node.gpus for node in nodes)
    if wanted > existing:
        raise UsageError(f"{option} asks for {wanted:g} GPUs, and the cluster has {existing:g}")


async def probe_nodes(
    ray: Any, nodes: Sequence[Node], *, modules: Iterable[str], hosts: Iterable[str] = ()
) -> list[Place]:
    """Returns the place of every node, after asking each node. Raises `UsageError` if a node has
    another version, lacks a module, or cannot resolve the name of a host."""
    question = msgspec.json.encode(NodeProbe(tuple(modules), tuple(hosts)))
    results = await asyncio.gather(*(_probe(ray, node, question) for node in nodes))
    answers = [answer for answer in results if answer is not None]
    for answer in answers:
        _check(answer)
    return [answer.place for answer in answers if answer.place is not None]


async def _probe(ray: Any, node: Node, question: bytes) -> NodeProbe | None:
    """Asks one node. Returns None if the node has died in the meantime, which is no reason to
    refuse the run."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    pinned = NodeAffinitySchedulingStrategy(node.id, soft=False)
    task = ray.remote(answer_probe).options(num_cpus=0, max_retries=1, scheduling_strategy=pinned)
    try:
        async with asyncio.timeout(PROBE_SECONDS):
            answer: bytes = await task.remote(question)
    except TimeoutError:
        raise UsageError(
            f"node {node.address} did not start a process within {PROBE_SECONDS:g} s; look at its "
            "`ray status`"
        ) from None
    except ray.exceptions.RayError as error:
        is_gone = node.id not in {live.id for live in live_nodes(ray)}
        if is_gone or isinstance(error, ray.exceptions.TaskUnschedulableError):
            return None
        raise _cannot_work(node, error) from error
    return msgspec.json.decode(answer, type=NodeProbe)


def answer_probe(question: bytes) -> bytes:
    """Runs on a node. Returns the node's place, the modules that it lacks and the hosts that it
    cannot resolve."""
    probe = msgspec.json.decode(question, type=NodeProbe)
    return msgspec.json.encode(
        NodeProbe(
            modules=tuple(name for name in probe.modules if not _is_there(name)),
            hosts=tuple(host for host in probe.hosts if not resolves(host)),
            place=msgspec.json.decode(this_place(), type=Place),
        )
    )


def _is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def _check(answer: NodeProbe) -> None:
    place = answer.place
    assert place is not None, "it is an answer"
    if place.holdfast != __version__ or _minor(place.python) != _minor(platform.python_version()):
        raise UsageError(
            f"node {place.host} has Holdfast {place.holdfast} on Python {place.python}, and this "
            f"command {__version__} on {platform.python_version()}: install the same on both"
        )
    if answer.modules:
        extras = sorted({EXTRAS[name] for name in answer.modules if name in EXTRAS})
        advice = f"pip install '.[{','.join(extras)}]' (in the clone)" if extras else "install them"
        raise UsageError(
            f"node {place.host} lacks {', '.join(answer.modules)}, which the run needs: {advice} "
            "there, or name them in --requirements FILE"
        )
    if answer.hosts:
        raise UsageError(
            f"node {place.host} cannot resolve {', '.join(answer.hosts)}, where a gateway is to be "
            "reached: give the machines names that all of them know, or addresses with --advertise"
        )


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def _cannot_work(node: Node, error: Exception) -> UsageError:
    message = " ".join(str(error).split())
    if "No module named 'holdfast" in message or "No module named 'msgspec" in message:
        return UsageError(
            f"node {node.address} has no Holdfast: pip install '.[ray,postgres]' in a clone "
            "there, or name it in --requirements FILE"
        )
    _, is_pip, reason = message.partition("ERROR: ")
    if is_pip and "runtime environment" in message:
        return UsageError(
            f"node {node.address} cannot install what --requirements names: {reason[:600]}"
        )
    # Ray's message begins with the place of the error, and ends with the error.
    shown = message if len(message) <= 800 else f"{message[:200]} … {message[-600:]}"
    return UsageError(f"node {node.address} cannot run the command's processes: {shown}")
