"""The processes of isolated tools."""

import asyncio

from holdfast.rollout.tools.isolated import pool


def end_all() -> None:
    office = pool._offices[-1]
    office.close()
    for kept in office._pools.values():
        for process in kept._idle:
            asyncio.run_coroutine_threadsafe(process.end(), office.loop()).result()
    office._pools.clear()
