"""A system-call filter that forbids new user namespaces, for bubblewrap before 0.8, which has no
option for it.

A process has all capabilities in its own user namespace. So it could mount memory file systems
beyond every limit, and use parts of the kernel that are closed to users. The filter is a classic
BPF program for `bwrap --seccomp`. `clone` and `unshare` with CLONE_NEWUSER give EPERM. `clone3`,
whose flags a filter cannot read, gives ENOSYS, so that libraries use `clone`.
"""

import platform
import struct
from collections.abc import Iterator

from msgspec import Struct

CLONE_NEWUSER = 0x10000000
CLONE3 = 435
X32 = 0x40000000
"""On x86-64, system calls with this number or a higher one belong to another set."""
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16
"""Offsets of fields in a filter's input. For the first argument, this is the offset of its lower
half."""
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _DENY = 0x7FFF0000, 0x00050000 | 1
_MISSING = 0x00050000 | 38


class _Calls(Struct, frozen=True):
    """The numbers of the system calls `clone` and `unshare` on one architecture. Both calls have
    their flags in the first argument."""

    architecture: int
    clone: int
    unshare: int


_X86_64, _I386 = _Calls(0xC000003E, 56, 272), _Calls(0x40000003, 120, 310)
_AARCH64, _ARM = _Calls(0xC00000B7, 220, 97), _Calls(0x40000028, 120, 337)
_MACHINES = {"x86_64": (_X86_64, _I386), "aarch64": (_AARCH64, _ARM)}


def no_user_namespaces() -> bytes | None:
    """Returns the filter program for this machine, or None for an unknown architecture."""
    known = _MACHINES.get(platform.machine())
    return None if known is None else b"".join(_program(known))


def _program(known: tuple[_Calls, ...]) -> Iterator[bytes]:
    yield _instruction(_LOAD, _ARCHITECTURE)
    for calls in known:
        checks = list(_checks(calls))
        yield _instruction(_EQUAL, calls.architecture, otherwise=len(checks))
        yield from checks
    yield _instruction(_RETURN, _MISSING)


def _checks(calls: _Calls) -> Iterator[bytes]:
    """Yields the instructions that check a call on one architecture. Each way through them ends
    with a return."""
    yield _instruction(_LOAD, _NUMBER)
    yield _instruction(_AT_LEAST, X32, then=5)
    yield _instruction(_EQUAL, CLONE3, then=4)
    yield _instruction(_EQUAL, calls.clone, then=1)
    yield _instruction(_EQUAL, calls.unshare, otherwise=4)
    yield _instruction(_LOAD, _FIRST_ARGUMENT)
    yield _instruction(_ANY_BIT, CLONE_NEWUSER, then=1, otherwise=2)
    yield _instruction(_RETURN, _MISSING)
    yield _instruction(_RETURN, _DENY)
    yield _instruction(_RETURN, _ALLOW)


def _instruction(code: int, value: int, *, then: int = 0, otherwise: int = 0) -> bytes:
    """Encodes an instruction. For a test, `then` is the number of instructions that are skipped if
    the test succeeds, and `otherwise` the number if it fails."""
    return struct.pack("<HBBI", code, then, otherwise, value)
