"""Where the gateway's log goes: a line for each request, with its trajectory and no secret."""

import logging
import sys
import time

from holdfast.records.encoding.redaction import redact
from holdfast.records.errors import UsageError


class _Redacting(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return redact(super().format(record))


def log_to(where: str | None, *, worker: int | None) -> None:
    """`-` is standard error. Several workers may share a file: each line is one write."""
    if where is None:
        return
    handler: logging.Handler
    try:
        handler = logging.StreamHandler(sys.stderr) if where == "-" else logging.FileHandler(where)
    except OSError as error:
        raise UsageError(f"--log {where}: {error.strerror}") from error
    who = "" if worker is None else f"worker={worker} "
    form = f"%(asctime)s.%(msecs)03dZ level=%(levelname)s {who}%(message)s"
    formatter = _Redacting(form, datefmt="%Y-%m-%dT%H:%M:%S")
    formatter.converter = _utc
    handler.setFormatter(formatter)
    log = logging.getLogger("holdfast.gateway")
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    log.propagate = False


def _utc(seconds: float | None) -> time.struct_time:
    return time.gmtime(seconds)
