"""A cluster that does not answer costs its time, and no more."""

import asyncio
import threading
from types import SimpleNamespace

import pytest

from holdfast.cluster import connection
from holdfast.records.errors import UsageError


def test_nobody_waits_for_a_connection_that_came_too_late(monkeypatch, tmp_path):
    released, ended = threading.Event(), threading.Event()

    def init(**_: object) -> None:
        released.wait(20.0)
        ended.set()

    monkeypatch.setattr(connection, "CONNECT_SECONDS", 0.1)
    monkeypatch.setattr(connection, "import_ray", lambda: SimpleNamespace(init=init))
    monkeypatch.setattr(connection, "_keep_from_terminal", lambda log: None)

    async def connect() -> None:
        async with connection.connected("auto", None, requirements=[], log=tmp_path / "log"):
            pass

    try:
        with pytest.raises(UsageError, match="did not connect within"):
            asyncio.run(connect())
        assert not ended.is_set()
    finally:
        released.set()
