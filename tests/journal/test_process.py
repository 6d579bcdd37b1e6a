"""A process is taken for gone only when that is certain."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import pytest
from msgspec import structs

from holdfast.journal.process import is_gone, this_process
from holdfast.journal.types import WorkerIdentity
from support.namespaces import IN_A_PID_NAMESPACE, needs_namespaces

_SAYS_WHO_IT_IS = """
import msgspec
from holdfast.journal.process import this_process
print(msgspec.json.encode(this_process()).decode(), flush=True)
input()
"""


@contextmanager
def _sleeper(*around: str) -> "Iterator[tuple[subprocess.Popen[bytes], WorkerIdentity]]":
    """A process that lives until its standard input ends, and who it says it is."""
    command = [*around, sys.executable, "-c", _SAYS_WHO_IT_IS]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        yield child, msgspec.json.decode(child.stdout.readline(), type=WorkerIdentity)


def test_this_process_lives() -> None:
    assert this_process().pid == os.getpid()
    assert not is_gone(this_process())


def test_a_process_is_gone_when_it_has_ended() -> None:
    with _sleeper() as (child, identity):
        assert identity.pid == child.pid
        assert not is_gone(identity)
        child.kill()
    assert is_gone(identity)


def test_a_zombie_is_gone() -> None:
    with _sleeper() as (child, identity):
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # Ended, and not yet collected.
        assert child.returncode is None
        assert is_gone(identity)


def test_a_number_that_is_used_again_is_another_process() -> None:
    me = this_process()
    assert is_gone(structs.replace(me, born=f"{me.born}0"))


@pytest.mark.parametrize("changed", [{"host": "elsewhere"}, {"namespace": "x"}, {"namespace": ""}])
def test_nobody_elsewhere_is_ever_certain(changed: dict[str, str]) -> None:
    """Another machine, another boot or PID namespace, or a row of a version that knew of none."""
    with _sleeper() as (child, identity):
        child.kill()
    assert not is_gone(structs.replace(identity, **changed))


def test_a_process_of_unknown_birth_is_not_given_up_while_its_number_is_used() -> None:
    assert not is_gone(structs.replace(this_process(), born=""))


@needs_namespaces
def test_a_process_in_another_pid_namespace_is_not_looked_up_here() -> None:
    with _sleeper(*IN_A_PID_NAMESPACE) as (_, identity):
        # It lives as number 1 of its own, which here is somebody else.
        assert (identity.pid, identity.host) == (1, this_process().host)
        assert not is_gone(identity)


@needs_namespaces
def test_with_the_proc_of_another_namespace_a_living_process_is_not_taken_for_gone() -> None:
    """Whoever is told a number of its own finds another process under it in such a /proc."""
    script = (
        "from holdfast.journal.process import is_gone, this_process; me = this_process();"
        "print(me.pid, is_gone(me))"
    )
    command = [*IN_A_PID_NAMESPACE[:-1], sys.executable, "-c", script]
    process = subprocess.run(command, capture_output=True, text=True, check=True)
    assert process.stdout.split() == ["1", "False"]
