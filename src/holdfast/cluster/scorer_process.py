"""The process of a scorer that workers reach over the network: `python -m …scorer_process FD`.

The process listens at its node's address for clients that have its token, loads the scorer once for
each client, and ends with its actor.
"""

import asyncio
import os
import sys

from msgspec import Struct

from holdfast.cluster.child import Child
from holdfast.cluster.host_actor import NODE_ADDRESS
from holdfast.cluster.messages import Order, WorkerReport
from holdfast.engine.guards.event_loop import run_in_own_loop
from holdfast.engine.scoring.process import listen


class ScorerJob(Struct, frozen=True):
    token: str


def main(report: int) -> None:
    child = Child(report)
    job = child.job(ScorerJob)
    run_in_own_loop(_serve(child, job))
    os._exit(0)


async def _serve(child: Child, job: ScorerJob) -> None:
    stopped = asyncio.Event()

    def handle(order: Order) -> None:
        if order.stop:
            stopped.set()

    child.obey(handle)
    server = await listen(os.environ[NODE_ADDRESS], 0, token=job.token)
    async with server:
        child.report(WorkerReport(port=server.sockets[0].getsockname()[1]))
        await stopped.wait()


if __name__ == "__main__":
    main(int(sys.argv[1]))
