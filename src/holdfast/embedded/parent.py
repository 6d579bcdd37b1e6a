"""A process that ends with its parent: with the other end of the pipe on its stdin.

While a model is loaded, a library may keep the interpreter's lock for a minute, and no thread or
handler of Python runs. So until the process serves, it is the kernel that ends it: the pipe's end
is a signal, and signals have their default effect, which is immediate. After that, its end is a
stop like any other, and what is in flight is answered.
"""

import fcntl
import os
import select
import signal
import stat
import threading
import time

_STOP_SECONDS = 60.0
"""For what is in flight to be answered, on a machine that has other things to do as well."""
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def end_at_once() -> None:
    """From here on, SIGTERM and SIGINT end this process at once."""
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_DFL)


def end_with_stdin() -> None:
    """From here on, the end of stdin is one SIGTERM; nobody writes to it."""
    # A second signal, after the handlers of the first are gone, would kill a clean exit.
    signalled = _signal_from_kernel()
    follow = threading.Thread(target=_follow, args=[signalled], name="holdfast-stdin", daemon=True)
    follow.start()


def _signal_from_kernel() -> bool:
    if not hasattr(fcntl, "F_SETSIG") or not stat.S_ISFIFO(os.fstat(0).st_mode):
        return False  # Only Linux has it, and only a pipe ends: the thread is all there is.
    fcntl.fcntl(0, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(0, fcntl.F_SETSIG, signal.SIGTERM)
    fcntl.fcntl(0, fcntl.F_SETFL, fcntl.fcntl(0, fcntl.F_GETFL) | os.O_ASYNC)
    poll = select.poll()
    poll.register(0, 0)
    if poll.poll(0):  # It had ended before the signal was set up.
        os.kill(os.getpid(), signal.SIGTERM)
    return True


def _follow(signalled: bool) -> None:
    while os.read(0, 4096):
        pass
    if not signalled:
        os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_STOP_SECONDS)
    os._exit(0)
