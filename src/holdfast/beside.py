"""Runs `holdfast view` and `holdfast trace` beside a command, each as a process of its own.

Such a process reads the journal itself, so it needs no work from the command. It ends with the
command, however the command ends, because the command holds the other end of a pipe.
"""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from urllib.parse import unquote, urlsplit

from holdfast.addresses import is_http_address
from holdfast.extras import needed_by
from holdfast.journal import PASSWORDS, share_passwords
from holdfast.journal.types import MEMORY
from holdfast.records.encoding.redaction import hide
from holdfast.records.errors import UsageError

_STOP_SECONDS = 5.0
TRACE_SECONDS = 5.0
"""Seconds in which the last spans may be sent after the command has ended."""
_HEADERS = ("OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_TRACES_HEADERS")


@contextmanager
def view_beside(journal: str, *, option: str = "--view") -> Iterator[None]:
    """Shows the journal in a browser until the end of the block. The journal need not exist yet.
    Raises `UsageError` if the pages cannot be made here."""
    with needed_by(option, extra="view"):
        import jinja2  # noqa: F401 - Whether it is there.
    with _beside("view", "--journal", journal, stop_seconds=_STOP_SECONDS):
        yield


@contextmanager
def trace_beside(
    journal: str, url: str, *, option: str = "--otel"
) -> Iterator[Callable[[str], None]]:
    """Sends the spans of runs to a collector until the end of the block. Yields a function that
    takes the name of each run that is to be sent."""
    check_collector(url, option=option)
    if journal == MEMORY:
        raise UsageError(f"{option} needs a journal that another process can read, not {MEMORY}")
    arguments = ("trace", "--journal", journal, "--otel", url)
    with _beside(*arguments, stop_seconds=2 * TRACE_SECONDS) as child:

        def follow(run: str) -> None:
            assert child.stdin is not None, "it is a pipe"
            with suppress(BrokenPipeError):  # It has ended, and has said why.
                child.stdin.write(f"{run}\n".encode())
                child.stdin.flush()

        yield follow


def check_collector(url: str, *, option: str = "--otel") -> None:
    """Raises `UsageError` if the URL cannot be a collector's, or if the exporter is not installed.
    Makes log output and messages hide the secrets in the exporter's headers."""
    if not is_http_address(url):
        raise UsageError(
            f"{option} wants the address of a collector, as http://HOST:4318, not {url}"
        )
    if "@" in urlsplit(url).netloc:
        raise UsageError(f"{option} takes no password: give it in the variable {_HEADERS[0]}")
    for pair in ",".join(os.environ.get(name, "") for name in _HEADERS).split(","):
        value = pair.partition("=")[2]
        hide(value)
        hide(unquote(value))
    with needed_by(option, extra="otel"):
        import opentelemetry.exporter.otlp.proto.http
        import opentelemetry.sdk  # noqa: F401 - Whether they are there.


@contextmanager
def _beside(*arguments: str, stop_seconds: float) -> "Iterator[subprocess.Popen[bytes]]":
    share_passwords()
    environment = dict(os.environ)
    os.environ.pop(PASSWORDS, None)  # Agents and tools do not inherit them.
    child = subprocess.Popen(  # noqa: S603  # our own module, our own arguments
        [sys.executable, "-m", "holdfast", *arguments, "--until-stdin-closes"],
        stdin=subprocess.PIPE,
        env=environment,
        start_new_session=True,  # Ctrl-C is the command's, which ends it in its turn.
    )
    try:
        yield child
    finally:
        assert child.stdin is not None, "it is a pipe"
        child.stdin.close()
        try:
            child.wait(stop_seconds)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
