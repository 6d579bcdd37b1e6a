"""Fingerprints of code: what makes a rollout, or a scorer, the same when its run goes on."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from holdfast.records.run import Code
from holdfast.rollout.code.parts import Parts, innermost

_noting: "ContextVar[Parts | None]" = ContextVar("noting", default=None)
"""What is read while an `identity` is asked for, which may stand for code as well."""


def fingerprint_of(candidate: object) -> str:
    """`name@digest`."""
    return fingerprinted(candidate)[0]


def fingerprinted(candidate: object) -> tuple[str, Code]:
    """`name@digest`, and what it stands for."""
    with noting(candidate) as parts:
        parts.add(candidate)
    return f"{innermost(candidate).__name__}@{parts.digest}", Code(parts.digests)


def code_of(*candidates: object) -> str:
    """A digest of what defines them: for the `identity` of a processor with users' functions."""
    around = _noting.get()
    digests = []
    for candidate in candidates:
        with noting(candidate) as parts:
            parts.add(candidate)
        digests.append(parts.digest)
        if around is not None:
            around.include(parts.digests)
    return "-".join(digests)


def identified_in(*candidates: object) -> list[object]:
    """The objects with an identity of their own, such as judges, that the candidates are or name;
    each once."""
    with noting(None) as parts:
        for candidate in candidates:
            parts.add(candidate)
    return parts.identified


@contextmanager
def noting(home: object) -> Iterator[Parts]:
    """What is added in the block; `home` as in `Parts`."""
    parts = Parts(home)
    token = _noting.set(parts)
    try:
        yield parts
    finally:
        _noting.reset(token)
