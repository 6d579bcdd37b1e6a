"""Verdicts are kept by what was asked, and a file that another process writes to stops nobody."""

import asyncio
import sqlite3

from holdfast.engine.judging.cache import VerdictCache


async def test_a_file_keeps_what_another_cache_put(tmp_path):
    first, second = VerdictCache(tmp_path / "v.db"), VerdictCache(tmp_path / "v.db")
    assert await first.get(b"a") is None
    await asyncio.gather(first.put(b"a", "yes"), second.put(b"a", "no"), first.put(b"b", "no"))
    assert await second.get(b"a") == await first.get(b"a")
    assert await second.get(b"b") == "no"
    first.close()
    second.close()


async def test_the_loop_turns_while_a_file_is_waited_for(tmp_path):
    cache = VerdictCache(tmp_path / "v.db")
    cache.check()
    writer = sqlite3.connect(tmp_path / "v.db", isolation_level=None)
    writer.execute("BEGIN IMMEDIATE")
    putting = asyncio.create_task(cache.put(b"a", "yes"))
    for _ in range(20):
        await asyncio.sleep(0)
    assert not putting.done()
    writer.execute("ROLLBACK")
    writer.close()
    await putting
    assert await cache.get(b"a") == "yes"
    cache.close()
