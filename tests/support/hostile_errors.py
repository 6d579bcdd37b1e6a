"""Errors that raise when they are looked at."""

import asyncio


class NoAttributes(Exception):
    def __getattr__(self, name: str) -> object:
        raise RuntimeError(f"no {name} here")


class NoMessage(Exception):
    def __str__(self) -> str:
        raise SystemExit(3)


class CancelsWhenRead(Exception):
    def __str__(self) -> str:
        raise asyncio.CancelledError


class NoClass(Exception):
    @property
    def __class__(self) -> type:  # type: ignore[override]
        raise RuntimeError("no class")


class NoNotes(Exception):
    @property
    def __notes__(self) -> list[str]:
        raise KeyError("no notes")


class NoCause(Exception):
    @property
    def __cause__(self) -> BaseException:  # type: ignore[override]
        raise RuntimeError("no cause")


class Subtle(str):
    def encode(self, *_: object) -> bytes:
        raise RuntimeError("no bytes")


class SubtleMessage(Exception):
    def __str__(self) -> str:
        return Subtle("subtle")


class _Closed(type):
    def __getattribute__(cls, name: str) -> object:
        if name in ("__mro__", "__module__"):
            raise RuntimeError(f"no {name} of the class")
        return super().__getattribute__(name)


class NoModule(Exception, metaclass=_Closed):
    pass


HOSTILE = [
    NoModule,
    NoAttributes,
    NoMessage,
    CancelsWhenRead,
    NoClass,
    NoNotes,
    NoCause,
    SubtleMessage,
]
