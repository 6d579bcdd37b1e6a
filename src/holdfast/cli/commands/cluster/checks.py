"""Checks a run on a cluster before it begins."""

import argparse
import importlib.metadata
import re
import sys
from pathlib import Path
from urllib.parse import urlsplit

from msgspec import Struct

from holdfast.addresses import is_loopback
from holdfast.cluster.connection import check_cluster, import_ray
from holdfast.cluster.folder import TravelFolder, travel_folder
from holdfast.cluster.messages import Place
from holdfast.journal import is_server
from holdfast.records.encoding.text_files import read_text_file
from holdfast.records.errors import UsageError

MAX_REQUIREMENTS = 100_000
_LOCAL = re.compile(r"(-r|-c|-e|--requirement|--constraint|--editable)\b|\.{0,2}/")
"""Matches lines of a requirements file that name a file of this machine."""


class ClusterPlan(Struct, frozen=True):
    """The folder and the packages that a command needs on its cluster."""

    folder: TravelFolder | None
    """The folder with the user's code, or None if no code is needed."""
    requirements: list[str]


def check(args: argparse.Namespace, file: Path | None) -> ClusterPlan:
    """Checks the options without contacting the cluster. `file` has the user's code, if there is
    any. Raises `UsageError`."""
    check_cluster(args.cluster)
    import_ray()
    if not is_server(args.journal):
        raise UsageError(
            f"--cluster with --journal {args.journal}: workers on several machines share a journal "
            "on a server, as postgresql://USER@HOST/NAME; a file on a network file system loses "
            "data"
        )
    if not args.policy:
        raise UsageError(
            "--cluster needs --policy URL: the embedded engine serves this machine alone"
        )
    exclude = tuple(args.cluster_exclude or ())
    folder = None if file is None else travel_folder(file, exclude=exclude)
    return ClusterPlan(folder, _requirements(args))


def check_policy(args: argparse.Namespace, places: list[Place]) -> None:
    """Raises `UsageError` for an engine at a loopback address if workers are on several
    machines."""
    if len({place.address for place in places}) < 2:
        return
    for url in args.policy:
        host = urlsplit(url).hostname or ""
        if is_loopback(host):
            raise UsageError(
                f"--policy {url}: {host} is another machine on each node of the cluster; name the "
                "engine by an address that all of them can reach"
            )


def _requirements(args: argparse.Namespace) -> list[str]:
    """Returns the lines of the requirements file, as pip reads them."""
    if args.requirements is None:
        return []
    name = f"--requirements {args.requirements}"
    text = read_text_file(Path(args.requirements), name)
    if len(text) > MAX_REQUIREMENTS:
        raise UsageError(f"{name} has {len(text):,} characters, and can have {MAX_REQUIREMENTS:,}")
    whole = text.replace("\\\n", " ").splitlines()
    lines = [re.sub(r"(^|\s)#.*", "", line).strip() for line in whole]
    for line in lines:
        if _LOCAL.match(line):
            raise UsageError(
                f"{name}: {line[:100]!r} names a file of this machine, which the nodes do not "
                "have: write out what it lists"
            )
    return [line for line in lines if line]


def imported_modules() -> tuple[str, ...]:
    """Returns the installed packages that this command has imported, including those of the user's
    code, and the journal's driver, which is imported later. A node must have all of them."""
    installed = importlib.metadata.packages_distributions()
    known = {name.partition(".")[0] for name in list(sys.modules)}
    wanted = {name for name in known if name in installed and not name.startswith("_")}
    return tuple(sorted((wanted | {"psycopg"}) - {"holdfast", "pip", "setuptools"}))
