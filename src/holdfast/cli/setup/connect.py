"""Connects to the engine that a command names."""

import argparse
import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from msgspec import structs

from holdfast.cli.terminal.text import notify
from holdfast.embedded.arguments import VllmSettings, vllm_of
from holdfast.engine.arguments import check_folder, hosted_address, is_hosted
from holdfast.engine.connect import Connection, EmbeddedEngines, EngineAddress, connect
from holdfast.engine.meant import Meant, find_meant
from holdfast.engine.options import API_KEY
from holdfast.policy.retry import RetryPolicy
from holdfast.records.errors import UsageError


@asynccontextmanager
async def connect_command(args: argparse.Namespace) -> AsyncIterator[Connection]:
    """Connects to the engine of `--policy`. Without `--policy`, starts an engine that runs as long
    as the command."""
    engines = EmbeddedEngines(notify, quiet=args.quiet or args.json)
    try:
        async with connect(_address(args), engines=engines, notify=notify) as connection:
            yield connection
    finally:
        await asyncio.to_thread(engines.close)


async def meant_by_command(args: argparse.Namespace) -> Meant:
    """Returns the model and the renderer that the options mean."""
    if args.tokenizer is not None:
        return Meant()
    return await find_meant(_where(args, needs_key=False), args.renderer)


def _address(args: argparse.Namespace) -> EngineAddress:
    return structs.replace(
        _where(args),
        dialect=args.dialect,
        retry=retry_policy(args),
        patience=args.patience,
        tokenizer=args.tokenizer,
        renderer=args.renderer,
    )


def retry_policy(args: argparse.Namespace) -> RetryPolicy:
    return RetryPolicy(
        args.call_tries, args.call_deadline, args.try_timeout, stall_timeout=args.stall_timeout
    )


def _where(args: argparse.Namespace, *, needs_key: bool = True) -> EngineAddress:
    """Returns the address of the engines that `--policy` names, of a provider's model that
    `--policy` or `--model` names, or of an engine that the command starts."""
    vllm = started_vllm(args)
    named = args.policy or ([args.model] if args.model else [])
    if len(named) == 1 and is_hosted(named[0]):
        if args.policy and args.model:
            raise UsageError(f"--policy {named[0]} names the model already; leave --model out")
        own = api_key(args) if args.api_key_env != API_KEY else None
        instead = "name an engine with --policy URL"
        return hosted_address(
            named[0],
            api_key=own,
            environment=os.environ,
            instead=instead,
            needs_key=needs_key,
        )
    is_named = bool(args.policy)
    if not is_named:
        check_folder(args.model)
    return EngineAddress(
        urls=tuple(args.policy or ()),
        models=(args.model,) if is_named and args.model else (),
        folder=None if is_named else args.model,
        vllm=vllm,
        api_key=api_key(args),
        remedy="" if args.model else "name one with --model",
    )


def started_vllm(args: argparse.Namespace) -> VllmSettings | None:
    """Returns the settings of the vLLM that this process starts, or None if it starts none. The
    parts and workers of a command start none, because they get the address of the command's vLLM as
    `--policy`. Raises `UsageError` if the user gave both `--engine vllm` and `--policy`."""
    vllm = vllm_of(args)
    if vllm is None or not args.policy:
        return vllm
    of_another = getattr(args, "until_stdin_closes", False), getattr(args, "as_worker", None)
    if of_another == (False, None):
        raise UsageError(
            "--engine vllm starts an engine, and --policy names one that runs: give one of them"
        )
    return None


def api_key(args: argparse.Namespace) -> str | None:
    if args.api_key_env != API_KEY and args.api_key_env not in os.environ:
        raise UsageError(f"the environment has no {args.api_key_env}, which --api-key-env names")
    return os.environ.get(args.api_key_env)
