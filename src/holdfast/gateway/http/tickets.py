"""Answers that another worker of the same gateway relays to the client.

The worker that relays an answer reports whether it arrived, by the request's ticket. Until then the
client counts as waiting for it: the same request, sent meanwhile, is another call. If the relaying
worker dies instead, its connection is lost, and nobody knows whether the answer was delivered: the
client's repetition is answered from the record.
"""

from collections import OrderedDict
from typing import Protocol, TypeVar

from msgspec import Struct

MAX_TICKETS = 4096
Value = TypeVar("Value")


class RelayReport(Struct, frozen=True):
    """What became of an answer at the worker that relayed it."""

    ticket: str
    delivered: bool


class RelayedSubscription(Protocol):
    """A client's wait for an answer, a result or a trajectory."""

    def leave(self, *, delivered: bool | None) -> None:
        """`delivered` None means that nobody knows."""

    def mark_delivered(self) -> None:
        """Notes that an uncertain response was delivered."""


class _Relayed(Struct):
    subscription: RelayedSubscription
    connection: object
    """That to the relaying worker."""
    is_waiting: bool = True


class Tickets:
    """The last answers that were sent through other workers."""

    def __init__(self) -> None:
        self._relayed: OrderedDict[str, _Relayed] = OrderedDict()
        self._early: OrderedDict[str, bool] = OrderedDict()
        """Reports that came before the response had ended here."""

    def hold(self, ticket: str, subscription: RelayedSubscription, connection: object) -> None:
        """The subscription leaves when the report comes or the connection is lost."""
        delivered = self._early.pop(ticket, None)
        if delivered is not None:
            subscription.leave(delivered=delivered)
            return
        self._relayed[ticket] = _Relayed(subscription, connection)
        oldest = _oldest_beyond(MAX_TICKETS, self._relayed)
        if oldest is not None and oldest.is_waiting:
            oldest.subscription.leave(delivered=True)

    def report(self, report: RelayReport) -> None:
        relayed = self._relayed.pop(report.ticket, None)
        if relayed is None:
            self._early[report.ticket] = report.delivered
            _oldest_beyond(MAX_TICKETS, self._early)
        elif relayed.is_waiting:
            relayed.subscription.leave(delivered=report.delivered)
        elif report.delivered:
            relayed.subscription.mark_delivered()

    def disconnect(self, connection: object) -> None:
        """The connection to a worker is lost. A living worker may still report what it relayed."""
        for relayed in self._relayed.values():
            if relayed.connection is connection and relayed.is_waiting:
                relayed.is_waiting = False
                relayed.subscription.leave(delivered=None)


def _oldest_beyond(most: int, kept: "OrderedDict[str, Value]") -> Value | None:
    """The oldest value, removed, if there are more than so many."""
    return kept.popitem(last=False)[1] if len(kept) > most else None
