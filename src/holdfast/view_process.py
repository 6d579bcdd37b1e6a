"""Runs `holdfast view` beside a command, as a process of its own.

The command pays nothing for it: the process reads the journal by itself. It ends with the command,
however the command ends, because the command holds the other end of a pipe.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from holdfast.extras import needed_by
from holdfast.journal import PASSWORDS, share_passwords

_STOP_SECONDS = 5.0


@contextmanager
def view_beside(journal: str, *, option: str = "--view") -> Iterator[None]:
    """Shows the journal in a browser until the end of the block. The journal need not exist yet.
    Raises `UsageError` if the pages cannot be made here."""
    with needed_by(option, extra="view"):
        import jinja2  # noqa: F401 - Whether it is there.
    share_passwords()
    environment = dict(os.environ)
    os.environ.pop(PASSWORDS, None)  # Agents and tools do not inherit them.
    words = ("view", "--journal", journal, "--until-stdin-closes")
    child = subprocess.Popen(  # noqa: S603  # our own module, our own arguments
        [sys.executable, "-m", "holdfast", *words],
        stdin=subprocess.PIPE,
        env=environment,
        start_new_session=True,  # Ctrl-C is the command's, which ends it in its turn.
    )
    try:
        yield
    finally:
        assert child.stdin is not None, "it is a pipe"
        child.stdin.close()
        try:
            child.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
