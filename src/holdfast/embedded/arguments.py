"""The command line of `holdfast serve`."""

import argparse
from pathlib import Path

from msgspec import Struct

from holdfast.addresses import secret_in
from holdfast.records.errors import UsageError

STARTING = "starting: "
NOTE = "note: "
"""The prefix of the notes that `--progress` writes."""


class VllmSettings(Struct, frozen=True, kw_only=True):
    """The options that `--engine vllm` adds, for a vLLM that is to be started."""

    python: str = ""
    """The Python that has vLLM. "" means the one that runs this code."""
    memory: float | None = None
    """The share of the GPU's memory for vLLM. None means vLLM's own default."""
    dtype: str = ""
    """The data type in which vLLM computes. "" means vLLM's own default for the model."""
    lora_rank: int | None = None
    """The highest rank of adapters that vLLM loads at run time. None means that it loads no
    adapters."""
    options: str = ""
    """More of vLLM's own options, as on a command line."""

    def words(self) -> tuple[str, ...]:
        """Returns the options of `holdfast serve` that express these settings."""
        options = {
            "--engine-python": self.python,
            "--engine-memory": self.memory,
            "--engine-dtype": self.dtype,
            "--engine-lora-rank": self.lora_rank,
        }
        arguments = [
            word for name, value in options.items() if value for word in (name, str(value))
        ]
        # Joined with `=`, because the value may begin with a dash.
        more = [f"--engine-options={self.options}"] if self.options else []
        return ("--engine", "vllm", *arguments, *more)


class ServeSettings(Struct, frozen=True, kw_only=True):
    """The options of `holdfast serve`."""

    model: Path | None = None
    host: str = "127.0.0.1"
    port: int = 8000
    name: str | None = None
    """The served name. By default, it is the folder's own name."""
    max_batch: int = 32
    max_waiting: int = 1024
    max_length: int | None = None
    version: str = "default"
    threads: int = 1
    until_stdin_closes: bool = False
    progress: bool = False
    """Whether the process writes its progress to stdout until it serves."""
    api_key: str | None = None
    log_requests: bool = False
    vllm: VllmSettings | None = None
    """The settings of a vLLM that serves in place of the embedded engine."""


DESCRIPTION = (
    "Serves a causal language model from a Hugging Face folder, with the OpenAI API. The\n"
    "embedded engine serves it, or a vLLM that this command starts (--engine vllm). In the\n"
    "embedded engine, the same prompt, seed and sampling give the same tokens in any batch.\n\n"
    "  holdfast serve --model DIR --port 8000\n"
)
ENGINES = ("embedded", "vllm")
_VLLM_OPTIONS = ("python", "memory", "dtype", "lora_rank", "options")
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
        "listen at this port; 0: any free port (default: %(default)s)",
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
        "refuse requests with 503 while N wait (default: %(default)s)",
    )
    _add_integer(
        parser,
        "--max-model-len",
        2,
        1 << 30,
        None,
        "limit prompt and reply together to N tokens (default: the model's)",
    )
    parser.add_argument(
        "--version",
        dest="weight_version",
        default=_DEFAULTS.version,
        metavar="V",
        help="report this name as the version of the weights (default: %(default)s)",
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
        help="end when standard input closes, for example when the parent dies",
    )
    parser.add_argument(
        "--progress",
        action="store_true",
        help="print `starting: …` lines until the server answers",
    )
    parser.add_argument(
        "--log-requests",
        action="store_true",
        help="write a line `request ID` to standard error for each request",
    )
    parser.add_argument(
        "--api-key-env",
        default="",
        metavar="NAME",
        help="accept only clients with the key in this variable (default: all)",
    )
    add_vllm(parser)


def add_vllm(parser: argparse.ArgumentParser) -> None:
    """Adds the options that are common to all commands that start an engine."""
    parser.add_argument(
        "--engine",
        choices=ENGINES,
        default=ENGINES[0],
        help="start this engine (default: %(default)s)",
    )
    group = parser.add_argument_group("start vLLM (--engine vllm)")
    group.add_argument(
        "--engine-python",
        default="",
        metavar="PATH",
        help="start vLLM with this Python (default: the one that runs Holdfast)",
    )
    group.add_argument(
        "--engine-memory",
        type=share,
        metavar="SHARE",
        help="let vLLM use this share of the GPU's memory (default: vLLM's own)",
    )
    group.add_argument(
        "--engine-dtype",
        default="",
        metavar="NAME",
        help="let vLLM compute in this type (default: vLLM's choice for the model)",
    )
    group.add_argument(
        "--engine-lora-rank",
        type=int,
        metavar="N",
        help="let vLLM load LoRA adapters up to this rank (default: no adapters)",
    )
    group.add_argument(
        "--engine-options",
        default="",
        metavar="TEXT",
        help="add these options to vLLM's command line: '--tensor-parallel-size 2'",
    )


def share(text: str) -> float:
    """Parses a number above 0 and at most 1."""
    value = float(text)
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(f"wants a share above 0 and up to 1, not {text}")
    return value


def vllm_of(args: argparse.Namespace) -> VllmSettings | None:
    """Returns the vLLM settings of a parsed command line, or None for the embedded engine."""
    if args.engine != "vllm":
        used = [name for name in _VLLM_OPTIONS if getattr(args, f"engine_{name}")]
        if used:
            option = f"--engine-{used[0].replace('_', '-')}"
            raise UsageError(f"{option} belongs to --engine vllm: give that, too")
        return None
    return VllmSettings(**{name: getattr(args, f"engine_{name}") for name in _VLLM_OPTIONS})


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
        vllm=vllm_of(args),
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
