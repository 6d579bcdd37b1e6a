"""A rollout that is killed after each of its records, and started again."""

from holdfast.records.history import History, turns
from holdfast.records.message import Message
from holdfast.records.step import Generated, Record
from holdfast.rollout.context import Rollout
from support.rollout.stage import Oracle, Play


class Ended:
    """What came of a rollout, and what it cost."""

    def __init__(self, play: Play, found: object, records: list[Record]):
        self.found = found
        self.records = records
        self.history = History(records)
        self.requests = play.oracle.requests
        self.generated = len(self.requests)
        self.said: list[tuple[Message, ...]] = [
            one.prompt for one in turns(self.history, play.task)
        ]


async def ended(rollout, records: list[Record] | None = None, **options) -> Ended:
    """Goes on from these records, to the end."""
    play = Play(options.pop("oracle", None) or Oracle())
    lease = await play.lease()
    if records:
        await play.journal.append(lease, records)
    session = await play.session(**options)
    await session.log.begin_anew_if_needed()
    try:
        found = await rollout(Rollout(session))
        await session.log.cut_untaken()
        await session.log.append()
    finally:
        await session.episodes.close()
    return Ended(play, found, list(await play.journal.history(lease.id)))


async def check_every_kill(rollout, *, oracle: type[Oracle] = Oracle) -> Ended:
    """Nothing that is durable is generated again, and the end is as if nothing had happened."""
    whole = await ended(rollout, oracle=oracle())
    for kept in range(1, len(whole.records) + 1):
        before = whole.records[:kept]
        after = await ended(rollout, before, oracle=oracle())
        where = f"killed after record {kept}, {type(before[-1]).__name__}"
        durable = sum(isinstance(one, Generated) for one in before)
        assert not after.history.forks, f"{where}: {after.history.forks}"
        assert after.generated == whole.generated - durable, where
        assert after.found == whole.found, where
        assert after.said == whole.said, where
        assert after.history.steps.keys() == whole.history.steps.keys(), where
    return whole
