"""`holdfast gateway --cluster`: runs one gateway on each node, for one run.

Each gateway listens at its node's address, is advertised by the machine's full name, and has its
own token. Agents talk to the gateway of their node. Before the run is opened, the command checks
that other nodes can resolve these names. A file that only its owner can read lists the gateways and
their tokens.
"""

import argparse
import asyncio
import contextlib
import json
import math
import os
import secrets
import socket
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from holdfast import log_files
from holdfast.cli.commands import run as running
from holdfast.cli.commands.cluster import checks
from holdfast.cli.commands.cluster.driver import Driver
from holdfast.cli.commands.cluster.worker import Working
from holdfast.cli.commands.supervision import worker_options
from holdfast.cli.setup.connect import api_key
from holdfast.cli.setup.gateway_options import processor_options
from holdfast.cli.setup.user_code import load_module, scorer_in, scorer_place
from holdfast.cli.terminal.text import notify
from holdfast.cluster.child import Child
from holdfast.cluster.fleet import FleetSize
from holdfast.cluster.host_actor import NODE_ADDRESS
from holdfast.cluster.member import FleetMember, Resources
from holdfast.cluster.messages import Place, ProcessJob, ScorerAddress, WorkerReport
from holdfast.cluster.nodes import live_nodes, probe_nodes
from holdfast.cluster.run_workers import ClusterSettings
from holdfast.gateway import address
from holdfast.gateway.address import Address
from holdfast.gateway.agents.external import ExternalRolloutProcessor
from holdfast.gateway.protocol.keys import load_or_create_secret
from holdfast.journal.sql.journal import Journal
from holdfast.private_files import write_private
from holdfast.records.errors import UsageError
from holdfast.records.run import Run
from holdfast.rollout.processors.processor import fingerprinted

HOST = "{host}"
"""The placeholder in `--advertise` for each machine's own name."""


class GatewayJob(Struct, frozen=True):
    """The data that a gateway's process receives."""

    options: dict[str, object]
    token: str
    secret: str
    """The secret that signs agents' keys, in hexadecimal. All gateways of the run share it."""
    scorer: str
    scorers: list[ScorerAddress] = []
    idle: float | None = None
    is_training: bool = False
    secrets: list[str] = []


def check(args: argparse.Namespace) -> checks.ClusterPlan:
    """Raises `UsageError` for options that cannot be combined."""
    if args.workers > 1:
        raise UsageError("--workers with --cluster: there is one gateway on each node")
    if args.token_env is not None:
        raise UsageError(
            "--token-env with --cluster: each gateway makes a token of its own, and the command "
            "says in which file they are"
        )
    if args.tls_cert is not None or args.tls_key is not None:
        raise UsageError(
            "--tls-cert with --cluster: one certificate is not a name of several machines; put a "
            "proxy with https in front of each gateway, and name it with --advertise"
        )
    if args.advertise is not None:
        address.check_advertised(args.advertise.replace(HOST, "host"))
    return checks.check(args, scorer_place(Path(), args.scorer)[0] if args.scorer else None)


class GatewayDriver(Driver):
    """Opens the run, and keeps a gateway going on each node."""

    def __init__(
        self, args: argparse.Namespace, work: running.Work, wants: checks.ClusterPlan
    ) -> None:
        super().__init__(args, work, wants)
        self._nodes = 1
        self._listed: dict[str, dict[str, str]] = {}

    async def _probe(self, ray: Any) -> list[Place]:
        places = await super()._probe(ray)
        hosts = {_advertised_host(self._args, place) for place in places}
        await probe_nodes(ray, live_nodes(ray), modules=(), hosts=sorted(hosts))
        self._nodes = len(places)
        return places

    @property
    def _settings(self) -> ClusterSettings:
        return msgspec.structs.replace(
            super()._settings, worker=Resources(0.0), one_per_node=True, size=FleetSize(None)
        )

    def _worker_job(self, run: Run, scorers: list[ScorerAddress]) -> ProcessJob:
        args = self._args
        planned = min(args.concurrency, len(self._work.plan.tasks) * run.spec.samples)
        changed = {
            **self._changed(run),
            "concurrency": max(1, math.ceil(planned / self._nodes)),
            "scorer": None if args.scorer is None else self._scorer_reference(Path()),
        }
        job = GatewayJob(
            options=worker_options(args, changed),
            token=secrets.token_urlsafe(32),
            secret=self._secret(run).hex(),
            scorer=run.spec.scorer,
            scorers=scorers,
            secrets=[key] if (key := api_key(args)) else [],
        )
        arguments = ["-m", "holdfast", "gateway", "--tasks", "-", "--run", run.spec.name]
        return self._job([*arguments, "--as-node"], "gateway", run, job)

    def _secret(self, run: Run) -> bytes:
        """Returns the secret that signs agents' keys. The secret is kept beside the run's logs, so
        that agents that outlive this command can continue with their keys."""
        folder = log_files.logs_of(run.spec.name, self._args.journal)
        return load_or_create_secret(folder / "gateway-secret")

    async def _reported(self, run: Run, report: WorkerReport, member: FleetMember) -> None:
        if not report.url:
            return
        token = msgspec.json.decode(member.job.message, type=GatewayJob).token
        assert member.place is not None, "it has reported"
        self._listed[member.place.node] = {
            "host": member.place.host, "url": report.url, "token": token,
        }  # fmt: skip
        path = log_files.logs_of(run.spec.name, self._args.journal) / "gateways.json"
        write_private(path, json.dumps(list(self._listed.values()), indent=1).encode())
        notify(f"agents take trajectories at {report.url}/trajectories (its token is in {path})")


def _advertised_host(args: argparse.Namespace, place: Place) -> str:
    if args.advertise is None:
        return place.reachable
    advertised = args.advertise.replace(HOST, place.host)
    return urlsplit(advertised).hostname or "" if "://" in advertised else advertised


def work_on_node(args: argparse.Namespace) -> int:
    """Runs the process of one gateway."""
    child = Child(args.as_node)
    return _NodeGateway(args, child, child.job(GatewayJob)).run()


class _ReportingProcessor(ExternalRolloutProcessor):
    child: Child

    async def setup(self) -> None:
        await super().setup()
        self.child.report(WorkerReport(url=self.url))


class _NodeGateway(Working):
    """The process of one gateway. It is a worker whose trajectories wait for agents."""

    job: GatewayJob

    def _load(self) -> None:
        args, job = self.args, self.job
        host = os.environ[NODE_ADDRESS]
        advertise = (
            None if args.advertise is None else args.advertise.replace(HOST, socket.getfqdn())
        )
        sock = address.listen(host, args.port)
        at = Address(host, args.port, job.token, None, advertise, sock)
        self.processor = _ReportingProcessor(at, **processor_options(args))
        self.processor.child = self.child
        self.scorer = None
        if args.scorer is not None:
            place = scorer_place(Path(), args.scorer)
            function = scorer_in(load_module(place[0]), *place)
            self.compare("scorer", fingerprinted(function)[0], job.scorer)
            self.scorer = self.make_scorer(function, place=place)

    def _attach(self, journal: Journal, run: Run) -> None:
        assert isinstance(self.processor, ExternalRolloutProcessor), "it was loaded"
        self.processor.attach(journal, run, secret=bytes.fromhex(self.job.secret))


def run(args: argparse.Namespace, work: running.Work, wants: checks.ClusterPlan) -> int:
    with contextlib.suppress(KeyboardInterrupt):
        return asyncio.run(GatewayDriver(args, work, wants).run())
    return 130
