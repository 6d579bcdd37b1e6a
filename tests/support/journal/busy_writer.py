"""Commits to the journal at argv[1], and begins its log again and again, until its input ends."""

import asyncio
import os
import sys
import threading
from pathlib import Path

from holdfast.journal.sqlite import checkpoint
from holdfast.journal.sqlite.journal import SqliteJournal

checkpoint.START_BYTES, checkpoint.RESTART_BYTES, checkpoint.REST_BYTES = 300_000, 900_000, 300_000


async def main() -> None:
    ended = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
    journal = SqliteJournal(Path(sys.argv[1]))
    await journal.put_blob(b"first")
    print("begun", flush=True)
    while not ended.is_set():
        await asyncio.gather(*(journal.put_blob(os.urandom(5_000)) for _ in range(4)))
    await journal.close()


asyncio.run(main())
