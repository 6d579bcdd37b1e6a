"""`holdfast gateway`: a run whose agents others start.

The run is like any other: it is resumed by the same command, retried, scored and reported. Only
that each of its trajectories waits for an agent which comes to the gateway by itself.
"""

import argparse
import os
import sys
from pathlib import Path

from holdfast.cli import run as running
from holdfast.cli.loading import load_module, scorer_in, split
from holdfast.engine.scorer import Scorer
from holdfast.gateway.external import ExternalRolloutProcessor
from holdfast.records.errors import UsageError
from holdfast.records.task import read_tasks
from holdfast.rollout.processor import fingerprint_of


class _TellingProcessor(ExternalRolloutProcessor):
    """Says where agents find it."""

    async def setup(self) -> None:
        await super().setup()
        print(f"holdfast: agents take trajectories at {self.url}/trajectories", file=sys.stderr)


def gateway(args: argparse.Namespace) -> int:
    tasks = read_tasks(Path(args.tasks))
    scorer = None
    if args.scorer is not None:
        file, name = split(args.scorer)
        scorer = scorer_in(load_module(file), file, name)
    processor = _TellingProcessor(
        host=args.host, port=args.port, token=_token(args), silence=args.silence
    )
    work = running.work_of(
        args,
        tasks=tasks,
        processor=processor,
        rollout=fingerprint_of(processor),
        scorer=None if scorer is None else Scorer(scorer),  # type: ignore[arg-type]
        scorer_name="" if scorer is None else fingerprint_of(scorer),
    )
    return running.go(args, work)


def _token(args: argparse.Namespace) -> str | None:
    if args.token_env is None:
        return None
    token = os.environ.get(args.token_env)
    if not token:
        raise UsageError(f"--token-env {args.token_env}: that variable is not set")
    return token
