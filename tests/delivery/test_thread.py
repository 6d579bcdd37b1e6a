"""Loops that are not asynchronous have one in a thread, which is closed when the process ends."""

import threading

import pytest

from holdfast.delivery.thread import LoopThread, call_at_exit


class Source:
    def close(self) -> None:
        """What a plug-in registers whenever it is opened."""


def test_what_is_opened_again_is_closed_once_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    registered: list[object] = []
    monkeypatch.setattr(threading, "_register_atexit", registered.append)
    first, second = Source(), Source()
    for source in (first, second, first):
        call_at_exit(source.close)
    assert registered == [first.close, second.close]


def test_a_loop_ends_also_where_the_last_call_fails() -> None:
    async def broken() -> None:
        raise OSError("the disk is gone")

    thread = LoopThread("test")
    with pytest.raises(OSError, match="the disk is gone"):
        thread.close(broken())
    assert not thread.is_running
