"""Writes the gateway's log. A line for each request names the trajectory and holds no secret."""

import logging
import os
import sys
import time

from holdfast.records.encoding.redaction import redact
from holdfast.records.errors import UsageError


class _Redacting(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return redact(super().format(record))


def log_to(where: str | None, *, worker: int | None) -> None:
    """Logs to a file, or to standard error for `-`. Several workers can share a file, because each
    line is one write."""
    if where is None:
        return
    try:
        # The user names this file, so links are followed.
        file = sys.stderr if where == "-" else open(where, "a", opener=_for_its_owner)  # noqa: SIM115
    except OSError as error:
        raise UsageError(f"--log {where}: {error.strerror}") from error
    handler = logging.StreamHandler(file)
    who = "" if worker is None else f"worker={worker} "
    form = f"%(asctime)s.%(msecs)03dZ level=%(levelname)s {who}%(message)s"
    formatter = _Redacting(form, datefmt="%Y-%m-%dT%H:%M:%S")
    formatter.converter = _utc
    handler.setFormatter(formatter)
    log = logging.getLogger("holdfast.gateway")
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    log.propagate = False


def _for_its_owner(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _utc(seconds: float | None) -> time.struct_time:
    return time.gmtime(seconds)
