"""Spending adds up what a run has used so far, and stops the run at its limits.

The sum covers all records of the run, including records of other processes and records that are not
exported as data. A record that becomes durable in this process is added at once. The spending of
other processes is read from the journal every few seconds.
"""

import asyncio

from holdfast.engine.export.prices import money
from holdfast.engine.settings import Settings
from holdfast.engine.stop import Stop
from holdfast.journal.sql.journal import Journal
from holdfast.journal.worlds import WorldUse, use_of_worlds
from holdfast.records.errors import HoldfastError, JournalCorrupt, UsageError
from holdfast.records.run import Run
from holdfast.records.step import Drafted, Generated, Record, Scored
from holdfast.records.usage import Usage, UsageByModel, add_usages, judge_usage, total_usage

LEAVE_LIMITS_OUT = "leave --max-cost and --max-tokens-total out"
READ_SECONDS = 5.0
"""Seconds between two reads of what other workers spent."""


class SpendingLimitReached(HoldfastError):
    """The run reached a spending limit and stopped before it was finished."""


class Spending:
    """Adds up what the run uses, and stops the run at a limit."""

    def __init__(self, settings: Settings, stop: Stop, *, is_shared: bool):
        """`is_shared` says whether other workers can spend in the same run."""
        self._settings = settings
        self._stop = stop
        self._is_shared = is_shared
        self._read: dict[int, tuple[int, UsageByModel]] = {}
        """For each trajectory: how many of its records were read, and the usage in them."""
        self._recorded: UsageByModel = {}
        """The sum of the usages in `_read`."""
        self._worlds: WorldUse = WorldUse()
        self._since: UsageByModel = {}
        """Usage that became durable in this process after the journal was read."""

    @property
    def is_limited(self) -> bool:
        return self._settings.max_cost is not None or self._settings.max_tokens_total is not None

    @property
    def used(self) -> UsageByModel:
        return add_usages(self._recorded, self._since)

    async def read(self, journal: Journal, run: Run) -> None:
        """Reads the recorded usage if there is a limit, and stops the run if the limit is
        reached.
        """
        if not self.is_limited:
            return
        self._since = {}  # Everything durable by now is in the journal.
        listed = await journal.trajectories(run)
        grown = [row for row in listed if row.records != self._read.get(row.id, (0, {}))[0]]
        async for row, summary in journal.summaries(run, ordinals={row.ordinal for row in grown}):
            # A torn log is cut and counted when its trajectory continues.
            if not isinstance(summary, JournalCorrupt):
                self._read[row.id] = (row.records, summary.used)
        self._worlds = use_of_worlds(await journal.worlds(run=run, removed=True))
        self._recorded = {}
        for _, used in self._read.values():
            self._recorded = add_usages(self._recorded, used)
        self.check()

    @property
    def _is_watched(self) -> bool:
        """Whether costs can arise that no record of this process shows. Such costs come from other
        workers, and from worlds with a price."""
        prices = self._settings.price_table
        return self._is_shared or bool(prices is not None and prices.worlds)

    async def watch(self, journal: Journal, run: Run) -> None:
        """Reads what other workers and worlds cost, every `READ_SECONDS`, until the run stops."""
        while self.is_limited and self._is_watched and not self._stop.requested:
            await asyncio.sleep(READ_SECONDS)
            await self.read(journal, run)

    def take(self, record: Record) -> None:
        """Adds the usage of a record that became durable in this process."""
        if not self.is_limited:
            return
        if isinstance(record, Generated):
            used = record.billed + Usage(completion_tokens=-record.drafted)
            self._since = add_usages(self._since, {record.model: used})
            self._check_counted(record)
        elif isinstance(record, Drafted):
            used = Usage(completion_tokens=len(record.ids) // 4)
            self._since = add_usages(self._since, {record.model: used})
        elif isinstance(record, Scored):
            self._since = add_usages(self._since, judge_usage(record.details))
        else:
            return
        self.check()

    def _check_counted(self, record: Generated) -> None:
        if not (record.ids or record.usage or record.trainable):
            self._stop.fail(
                UsageError(
                    f"the engine of model {record.model!r} does not say how many tokens it "
                    "sampled, so that no limit on what is spent can be held: "
                    f"{LEAVE_LIMITS_OUT}"
                )
            )

    def check(self) -> None:
        """Stops the run if a limit is reached."""
        if reached := self.reached():
            self._stop.request(reached, spent=True)

    def reached(self) -> str:
        """Returns a line about the limit that is reached; "" if no limit is reached."""
        used, settings = self.used, self._settings
        most, tokens = settings.max_tokens_total, total_usage(used).total_tokens
        if most is not None and tokens >= most:
            return (
                f"{tokens:,} tokens are used: max-tokens-total ({most:,}) is reached; the same "
                "command with a higher one goes on"
            )
        return "" if settings.max_cost is None else self._reached_cost(settings.max_cost, used)

    def _reached_cost(self, most: float, used: UsageByModel) -> str:
        prices = self._settings.price_table
        assert prices is not None, "settings have prices where they have a limit on cost"
        cost = prices.cost_of(used)
        if cost.unpriced:
            self._stop.fail(UsageError(no_price(cost.unpriced[0])))
        amount = cost.amount + prices.of_worlds(self._worlds.seconds)
        if amount < most:
            return ""
        return (
            f"{money(amount)} {cost.currency} are spent: max-cost ({money(most)}) is reached; "
            "the same command with a higher one goes on"
        )


def check_price(settings: Settings, model: str) -> None:
    """Raises `UsageError` if a cost limit is set and the model has no price."""
    prices = settings.price_table
    if settings.max_cost is not None and prices is not None and prices.price_of(model) is None:
        raise UsageError(no_price(model))


def no_price(model: str) -> str:
    return (
        f"model {model!r} has no price, so that --max-cost cannot be held: give it one in the "
        "table of --price FILE (in pytest: --holdfast-price FILE; from Python: Settings(prices=…))"
    )
