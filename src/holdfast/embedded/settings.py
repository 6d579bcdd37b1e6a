"""What `holdfast serve` can be told. Light: the command line reads it to show its help."""

from pathlib import Path

from msgspec import Struct

STARTING = "starting: "
"""Begins the lines that `--progress` writes."""


class Settings(Struct, frozen=True, kw_only=True):
    """What `holdfast serve` was told."""

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
