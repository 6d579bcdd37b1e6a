"""A process is taken for gone only when that is certain."""

import os
import socket
import subprocess
import sys

from holdfast.journal.journal import WorkerIdentity
from holdfast.journal.process import _born, is_gone, this_process


def _sleeper() -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)


def _identity(pid: int) -> WorkerIdentity:
    return WorkerIdentity(socket.gethostname(), pid, _born(pid))


def test_this_process_lives() -> None:
    assert this_process().pid == os.getpid()
    assert not is_gone(this_process())


def test_a_process_is_gone_when_it_has_ended() -> None:
    with _sleeper() as child:
        identity = _identity(child.pid)
        assert not is_gone(identity)
        child.kill()
    assert is_gone(identity)


def test_a_zombie_is_gone() -> None:
    with _sleeper() as child:
        identity = _identity(child.pid)
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # Ended, and not yet collected.
        assert child.returncode is None
        assert is_gone(identity)


def test_a_number_that_is_used_again_is_another_process() -> None:
    me = this_process()
    assert is_gone(WorkerIdentity(me.host, me.pid, me.born + "0"))


def test_another_machine_is_never_certain() -> None:
    with _sleeper() as child:
        identity = _identity(child.pid)
        child.kill()
    assert not is_gone(WorkerIdentity("elsewhere", identity.pid, identity.born))


def test_a_process_of_unknown_birth_is_not_given_up_while_its_number_is_used() -> None:
    me = this_process()
    assert not is_gone(WorkerIdentity(me.host, me.pid, ""))
