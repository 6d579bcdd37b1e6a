"""The lease of a trainer, renewed beside its own work."""

import asyncio
import logging

from holdfast.journal.journal import Consumer, Journal

_log = logging.getLogger("holdfast.delivery")


class LeaseRenewal:
    """Renews a consumer's lease, from when it is made until `end`."""

    def __init__(self, journal: Journal, consumer: Consumer):
        self._journal = journal
        self._consumer = consumer
        self._is_reported = False
        self._renewing = asyncio.create_task(self._renew(), name="the trainer's lease")

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(self._consumer.lease_seconds / 3)
            await self._journal.renew(self._consumer)

    def check(self) -> None:
        """Raises what took the lease."""
        if self._renewing.done():
            self._is_reported = True
            self._renewing.result()

    async def end(self) -> None:
        """What took the lease is logged where no `check` has raised it: nobody else would say
        it."""
        self._renewing.cancel()
        await asyncio.wait({self._renewing})
        error = None if self._renewing.cancelled() else self._renewing.exception()
        if error is not None and not self._is_reported:
            _log.warning("the lease of %r was lost: %s", self._consumer.name, error)
