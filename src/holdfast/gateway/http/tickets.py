"""Answers that another worker of the same gateway relays to the client.

The worker that relays an answer uses the request's ticket to report whether the answer arrived.
Until this report, the client counts as waiting for the answer, so the same request counts as a new
call. If the relaying worker dies, its connection is lost, and it is unknown whether the answer was
delivered. If the client then repeats the request, it is answered from the record.
"""

from collections import OrderedDict
from typing import Protocol, TypeVar

from msgspec import Struct

MAX_TICKETS = 4096
Value = TypeVar("Value")


class RelayReport(Struct, frozen=True):
    """The report about an answer from the worker that relayed it."""

    ticket: str
    delivered: bool


class RelayedSubscription(Protocol):
    """A client that waits for an answer, a result or a trajectory."""

    def leave(self, *, delivered: bool | None) -> None:
        """Ends the waiting. `delivered` is None if it is unknown whether the response arrived."""

    def mark_delivered(self) -> None:
        """Notes that an uncertain response was delivered."""


class _Relayed(Struct):
    subscription: RelayedSubscription
    connection: object
    """The connection to the relaying worker."""
    is_waiting: bool = True


class Tickets:
    """Keeps the latest answers that were sent through other workers."""

    def __init__(self) -> None:
        self._relayed: OrderedDict[str, _Relayed] = OrderedDict()
        self._early: OrderedDict[str, bool] = OrderedDict()
        """Reports that came before the response had ended here."""

    def hold(self, ticket: str, subscription: RelayedSubscription, connection: object) -> None:
        """Keeps the subscription until the report comes or the connection is lost."""
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
        """Notes that the connection to a relaying worker was lost. It is then unknown whether the
        answers that this worker relays arrive. If the worker is alive, it can still report on
        them."""
        for relayed in self._relayed.values():
            if relayed.connection is connection and relayed.is_waiting:
                relayed.is_waiting = False
                relayed.subscription.leave(delivered=None)


def _oldest_beyond(most: int, kept: "OrderedDict[str, Value]") -> Value | None:
    """Removes and returns the oldest value if there are more than `most`. Otherwise returns
    None."""
    return kept.popitem(last=False)[1] if len(kept) > most else None
