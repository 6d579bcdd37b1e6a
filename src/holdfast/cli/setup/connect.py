"""Connecting: the policy that a command names, and the renderer of its model.

Without `--policy`, the embedded engine is started for as long as the command runs, and started
again should it die.
"""

import argparse
import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from holdfast.cli.options.run import API_KEY
from holdfast.cli.terminal.text import one_line
from holdfast.policy.rendering.renderer import Renderer
from holdfast.policy.retry import RetryPolicy
from holdfast.records.errors import HoldfastError, UsageError
from holdfast.records.redaction import redact

if TYPE_CHECKING:
    from holdfast.embedded.child_process import EmbeddedEngine
    from holdfast.policy.client.replicas import EnginePolicy


WATCH_SECONDS = 0.5


class PolicyConnection(msgspec.Struct, frozen=True):
    policy: "EnginePolicy"
    renderer: Renderer


@asynccontextmanager
async def connected(args: argparse.Namespace) -> AsyncIterator[PolicyConnection]:
    """Everything is checked before it is given out, and closed afterwards."""
    if args.policy:
        async with _policy(args, args.policy, args.model) as policy:
            yield PolicyConnection(policy, _renderer(args, policy))
        return
    from holdfast.embedded.child_process import EmbeddedEngine

    folder = None if args.model is None else Path(args.model)
    is_quiet = args.quiet or args.json
    engine = EmbeddedEngine(folder, report=None if is_quiet else _tell)
    if not is_quiet:
        _tell("starting the embedded engine")
    await engine.start_in_thread()
    keeper = asyncio.create_task(_keep_alive(engine), name="keep the embedded engine alive")
    try:
        async with _policy(args, [engine.url], engine.model) as policy:
            yield PolicyConnection(policy, _renderer(args, policy))
    finally:
        keeper.cancel()
        await asyncio.gather(keeper, return_exceptions=True)
        await asyncio.to_thread(engine.stop)


async def _keep_alive(engine: "EmbeddedEngine") -> None:
    """A dead engine is an outage like any other: calls wait until it is back, and go on."""
    while True:
        await asyncio.sleep(WATCH_SECONDS)
        if not engine.running:
            try:
                await engine.start_in_thread()
            except HoldfastError as error:
                _tell(f"the embedded engine died, and cannot be started again yet: {error}")


@asynccontextmanager
async def _policy(
    args: argparse.Namespace, urls: list[str], model: str | None
) -> "AsyncIterator[EnginePolicy]":
    from holdfast.policy.client.replicas import (  # Bad input is told without it.
        EnginePolicy,
        only_model,
    )

    key = api_key(args)
    policy = EnginePolicy(
        urls,
        model or await only_model(urls[0], api_key=key),
        dialect=args.dialect,
        api_key=key,
        retry=RetryPolicy(
            args.call_tries,
            args.call_deadline,
            args.try_timeout,
            stall_timeout=args.stall_timeout,
        ),
        patience=args.patience,
        tell=_tell,
    )
    try:
        await policy.check()
        await check_dialect(args, policy)
        yield policy
    finally:
        await policy.aclose()


async def check_dialect(args: argparse.Namespace, policy: "EnginePolicy") -> None:
    """Refuses a dialect that was named and that no engine knows, before a run is recorded."""
    from holdfast.policy.client.discovery import check_spoken

    if args.dialect is not None:
        await check_spoken([one for one in policy.endpoints if one.introduce is None])


def _tell(line: str) -> None:
    print(f"holdfast: {one_line(redact(line))}", file=sys.stderr, flush=True)


def api_key(args: argparse.Namespace) -> str | None:
    if args.api_key_env != API_KEY and args.api_key_env not in os.environ:
        raise UsageError(f"the environment has no {args.api_key_env}, which --api-key-env names")
    return os.environ.get(args.api_key_env)


def _renderer(args: argparse.Namespace, policy: "EnginePolicy") -> Renderer:
    from holdfast.policy.rendering.select import renderer_of

    if not policy.has_tokens:
        _tell("this engine gives messages without token ids: good for evaluation, not for training")
    return renderer_of(policy, tokenizer=args.tokenizer, family=args.renderer)
