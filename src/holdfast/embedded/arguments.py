"""The command line of `holdfast serve`."""

import argparse
from pathlib import Path

from msgspec import Struct

from holdfast.addresses import secret_in

STARTING = "starting: "
NOTE = "note: "
"""Begins the lines that `--progress` writes."""


class ServeSettings(Struct, frozen=True, kw_only=True):
    """The options of `holdfast serve`."""

    model: Path | None = None
    host: str = "127.0.0.1"
    port: int = 8000
    name: str | None = None
    """Default: the folder's own name."""
    max_batch: int = 32
    max_waiting: int = 1024
    max_length: int | None = None
    version: str = "default"
    threads: int = 1
    until_stdin_closes: bool = False
    progress: bool = False
    """Whether it writes to stdout what it does until it serves."""
    api_key: str | None = None
    log_requests: bool = False


DESCRIPTION = (
    "Serves a causal LM from a Hugging Face folder, OpenAI-compatible, on this machine.\n"
    "The same prompt, seed and sampling give the same tokens whatever else is in the batch.\n\n"
    "  holdfast serve --model DIR --port 8000\n"
)
_DEFAULTS = ServeSettings()
_MAX_PORT = 65535
_MAX_BATCH = 1024
_MAX_THREADS = 1024


def add_to(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--model",
        type=Path,
        metavar="DIR",
        help="serve this Hugging Face folder (default: our tiny model)",
    )
    parser.add_argument(
        "--host",
        default=_DEFAULTS.host,
        metavar="ADDRESS",
        help="listen at this address (default: %(default)s)",
    )
    _add_integer(
        parser,
        "--port",
        0,
        _MAX_PORT,
        _DEFAULTS.port,
        "listen at this port; 0 takes a free one (default: %(default)s)",
    )
    parser.add_argument(
        "--served-model-name",
        metavar="NAME",
        help="serve the model by this name (default: the folder's)",
    )
    _add_integer(
        parser,
        "--max-batch",
        1,
        _MAX_BATCH,
        _DEFAULTS.max_batch,
        "run up to N requests at once (default: %(default)s)",
    )
    _add_integer(
        parser,
        "--max-waiting",
        1,
        1 << 20,
        _DEFAULTS.max_waiting,
        "refuse requests with 503 when N wait (default: %(default)s)",
    )
    _add_integer(
        parser,
        "--max-model-len",
        2,
        1 << 30,
        None,
        "limit prompt and completion to N tokens together (default: the model's limit)",
    )
    parser.add_argument(
        "--version",
        dest="weight_version",
        default=_DEFAULTS.version,
        metavar="V",
        help="report this version of the weights (default: %(default)s)",
    )
    _add_integer(
        parser,
        "--threads",
        1,
        _MAX_THREADS,
        _DEFAULTS.threads,
        "let torch use N threads (default: %(default)s)",
    )
    parser.add_argument(
        "--until-stdin-closes",
        action="store_true",
        help="end when standard input closes, so that the server dies with its parent",
    )
    parser.add_argument(
        "--progress",
        action="store_true",
        help="write the progress of the start to stdout, as `starting: …`",
    )
    parser.add_argument(
        "--log-requests",
        action="store_true",
        help="write one line `request ID` to stderr for each request",
    )
    parser.add_argument(
        "--api-key-env",
        default="",
        metavar="NAME",
        help="require the key in this environment variable of clients (default: none)",
    )


def settings(args: argparse.Namespace) -> ServeSettings:
    return ServeSettings(
        model=args.model,
        host=args.host,
        port=args.port,
        name=args.served_model_name,
        max_batch=args.max_batch,
        max_waiting=args.max_waiting,
        max_length=args.max_model_len,
        version=args.weight_version,
        threads=args.threads,
        until_stdin_closes=args.until_stdin_closes,
        progress=args.progress,
        api_key=secret_in(args.api_key_env, option="--api-key-env"),
        log_requests=args.log_requests,
    )


def _add_integer(
    parser: argparse.ArgumentParser,
    name: str,
    least: int,
    most: int,
    default: int | None,
    meaning: str,
) -> None:
    def number(text: str) -> int:
        value = int(text)
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{value} is not between {least} and {most}")
        return value

    parser.add_argument(name, type=number, default=default, metavar="N", help=meaning)
