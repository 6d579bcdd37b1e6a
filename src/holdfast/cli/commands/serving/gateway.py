"""`holdfast gateway`: works on a run whose agents other programs start.

The run is resumed by the same command, retried, scored and reported like any other run. The only
difference is that each trajectory waits until an agent connects to the gateway. Before the run is
opened, the socket is bound and everything else is checked.
"""

import argparse
import socket
import ssl
from contextlib import ExitStack
from pathlib import Path

from holdfast.addresses import is_loopback, secret_in
from holdfast.cli.commands import run as running
from holdfast.cli.commands.serving import gateway_workers
from holdfast.cli.setup.gateway_options import ignored_fields, processor_options
from holdfast.cli.setup.scorers import make_scorer
from holdfast.cli.setup.user_code import load_module, scorer_in, scorer_place
from holdfast.cli.terminal.gateway_log import log_to
from holdfast.cli.terminal.text import notify
from holdfast.engine.running.run_plan import NO_CODE
from holdfast.gateway import address
from holdfast.gateway.address import Address
from holdfast.gateway.agents.external import ExternalRolloutProcessor
from holdfast.gateway.calls.rejections import OnRefused
from holdfast.gateway.protocol.keys import SECRET_BYTES, load_or_create_secret
from holdfast.gateway.workers.supervisor import end_with_supervisor
from holdfast.journal import is_server
from holdfast.journal.types import MEMORY
from holdfast.records.errors import UsageError
from holdfast.rollout.processors.processor import fingerprinted
from holdfast.server_tokens import LoopbackToken

MIB = 1024 * 1024
ROLLOUT = "agents that others start"
"""The name of the rollout in the run's identity. It is always the same, because the gateway does
not know the agents' code."""


class _AnnouncingProcessor(ExternalRolloutProcessor):
    """A processor that prints the address where agents find it."""

    async def setup(self) -> None:
        await super().setup()
        notify(gateway_workers.found_at(self.url, self._address))


class _WorkerProcessor(ExternalRolloutProcessor):
    async def setup(self) -> None:
        end_with_supervisor()
        await super().setup()


def gateway(args: argparse.Namespace) -> int:
    if args.as_node is not None:
        from holdfast.cli.commands.cluster.gateways import work_on_node

        return work_on_node(args)
    if args.cluster is not None:
        return _on_cluster(args)
    role = gateway_workers.role_of(args)
    _check(args)
    token = secret_in(args.token_env, option="--token-env")
    address.check_usable(token, args.host)
    tls = _tls(args)
    with ExitStack() as stack:
        sock = stack.enter_context(_listening(args, role))
        at = Address(args.host, args.port, token, tls, args.advertise, sock)
        if token is None:  # Before the gateway answers any agent.
            stack.enter_context(LoopbackToken(sock.getsockname()[1]))
        kind = _AnnouncingProcessor if role is None else _WorkerProcessor
        place = None if role is None else role.place
        processor = kind(at, place=place, **processor_options(args))
        work = _work(args, processor, quiet=role is not None)
        log_to(args.log, worker=None if role is None else role.place.index)
        if args.workers > 1:
            return gateway_workers.go(args, work, at)
        return running.go(args, work)


def _listening(args: argparse.Namespace, role: gateway_workers.WorkerRole | None) -> socket.socket:
    return address.listen(args.host, args.port) if role is None else role.sock


def _on_cluster(args: argparse.Namespace) -> int:
    from holdfast.cli.commands.cluster import gateways

    wants = gateways.check(args)
    # Options that only `run` has.
    vars(args).update(worker_cpus=0.0, worker_gpus=0.0, off_gpu_nodes=False)
    processor = ExternalRolloutProcessor(ignore=ignored_fields(args), on_refused=args.on_refused)
    return gateways.run(args, _work(args, processor, quiet=False), wants)


def _work(
    args: argparse.Namespace, processor: ExternalRolloutProcessor, *, quiet: bool
) -> running.Work:
    tasks = running.tasks_of(args)
    scorer, place = None, (Path(), "")
    if args.scorer is not None:
        place = scorer_place(Path(), args.scorer)
        scorer = scorer_in(load_module(place[0]), *place)
    plan = running.plan_of(
        args,
        tasks=tasks,
        processor=processor,
        rollout=(_rollout(args), None),
        scorer=make_scorer(args, scorer, place=place, tasks=tasks),
        scorer_code=NO_CODE if scorer is None else fingerprinted(scorer),
    )
    return running.Work(
        plan, lambda journal, run: processor.attach(journal, run, secret=_secret(args)), quiet
    )


def _rollout(args: argparse.Namespace) -> str:
    without = "".join(f", without {name}" for name in sorted(ignored_fields(args)))
    accepting = ", accepting refused calls" if args.on_refused == OnRefused.ACCEPT else ""
    return ROLLOUT + without + accepting


def _check(args: argparse.Namespace) -> None:
    if args.journal == MEMORY:
        raise UsageError(
            f"--journal {MEMORY}: agents must find their past again; name a file, like run.journal"
        )
    if not args.host or not args.host.isprintable():
        raise UsageError("--host: name the address to listen at, like 127.0.0.1 or 0.0.0.0")
    if args.advertise is not None:
        address.check_advertised(args.advertise)
    elif args.as_worker is None:
        address.reachable_name(args.host)  # Raises before the run is opened.
    if args.concurrency < args.workers:
        raise UsageError(
            f"--workers {args.workers} with --concurrency {args.concurrency}: each worker has at "
            "least one trajectory open; give fewer workers or more concurrency"
        )
    if not args.silence > 0:
        raise UsageError("--silence must be more than 0 seconds")


def _tls(args: argparse.Namespace) -> ssl.SSLContext | None:
    if args.tls_cert is None and args.tls_key is None:
        if not is_loopback(args.host) and args.as_worker is None:
            notify("without --tls-cert, the token and all keys cross the network readable to all")
        return None
    if args.tls_cert is None or args.tls_key is None:
        present, missing = "--tls-cert", "--tls-key"
        if args.tls_cert is None:
            present, missing = missing, present
        raise UsageError(f"{present} is of no use without {missing}")
    return address.tls(Path(args.tls_cert), Path(args.tls_key))


def _secret(args: argparse.Namespace) -> bytes:
    """Returns the secret that signs agents' keys. The secret is kept beside the journal's file, or
    in the journal's database. So a user who can resume the run can also resume its agents."""
    if is_server(args.journal):
        from holdfast.journal.postgres.journal import load_or_make_secret

        return load_or_make_secret(args.journal, "gateway", size=SECRET_BYTES)
    path = Path(args.journal)
    return load_or_create_secret(path.with_name(f"{path.name}.gateway-secret"))
