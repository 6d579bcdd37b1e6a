"""`python -m holdfast.environments.serving FILE.py:make` serves an environment over HTTP."""

import argparse
import asyncio
import os
import signal
import sys
import threading

import msgspec

from holdfast.addresses import secret_in
from holdfast.environments.http.server import IDLE_SECONDS, MAX_SESSIONS, EnvironmentServer, Make
from holdfast.records.encoding.redaction import redact
from holdfast.records.errors import UsageError
from holdfast.rollout.code.load import UserCodeError, load_module, split

_USAGE_EXIT_CODE = 2
_MAX_PORT = 65535


def main(arguments: list[str]) -> int:
    args = _parser().parse_args(arguments)
    try:
        asyncio.run(_serve(args))
    except UsageError as error:
        if isinstance(error, UserCodeError):
            sys.stderr.write(redact(error.traceback))
        sys.stderr.write(f"holdfast: {redact(str(error))}\n")
        return _USAGE_EXIT_CODE
    return 0


async def _serve(args: argparse.Namespace) -> None:
    server = EnvironmentServer(
        _load(args.make),
        host=args.host,
        port=args.port,
        token=secret_in(args.token_env, option="--token-env"),
        example=_example(args.example),
        max_sessions=args.max_sessions,
        idle=args.idle,
    )
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    if args.until_stdin_closes:
        threading.Thread(target=_follow_stdin, name="holdfast-stdin", daemon=True).start()
    async with server:
        sys.stdout.write(f"serving {server.description.name} at {server.url}\n")
        sys.stdout.flush()
        await stop.wait()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m holdfast.environments.serving",
        description="Serves an environment over HTTP, a session for each trajectory.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "make", metavar="FILE.py:NAME", help="a function that creates the environment of a task"
    )
    parser.add_argument("--host", default="127.0.0.1", metavar="ADDRESS", help="%(default)s")
    parser.add_argument(
        "--port", type=_port, default=0, metavar="N", help="0 takes a free one (%(default)s)"
    )
    parser.add_argument(
        "--token-env",
        default="",
        metavar="NAME",
        help="the environment variable that holds the token of the clients (none)",
    )
    parser.add_argument(
        "--example",
        default="null",
        metavar="JSON",
        help="make the description of the environment from this task (default: null)",
    )
    parser.add_argument(
        "--max-sessions", type=int, default=MAX_SESSIONS, metavar="N", help="%(default)s"
    )
    parser.add_argument(
        "--idle",
        type=float,
        default=IDLE_SECONDS,
        metavar="SECONDS",
        help="a session without requests is closed after this time (%(default)s)",
    )
    parser.add_argument(
        "--until-stdin-closes",
        action="store_true",
        help="end when stdin does, so that the server ends with its parent process",
    )
    return parser


def _port(text: str) -> int:
    value = int(text)
    if not 0 <= value <= _MAX_PORT:
        raise argparse.ArgumentTypeError(f"{value} is not between 0 and {_MAX_PORT}")
    return value


def _load(reference: str) -> Make:
    path, name = split(reference)
    if name is None or not name.isidentifier():
        raise UsageError(f"{reference!r} names no function of a file; it looks like FILE.py:make")
    make: Make | None = getattr(load_module(path), name, None)
    if not callable(make):
        raise UsageError(f"{path} has no function {name!r}")
    return make


def _example(text: str) -> object:
    try:
        return msgspec.json.decode(text)
    except msgspec.MsgspecError as error:
        raise UsageError(f"--example: {error}") from error


def _follow_stdin() -> None:
    """Ends this process when the program at the other end of stdin has ended, even if that program
    was killed."""
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
