"""A rollout that is killed after each of its records, and started again."""

from holdfast.records.history import History, turns
from holdfast.records.message import Message
from holdfast.records.step import Generated, Record
from holdfast.rollout.context import Rollout
from support.rollout.stage import Oracle, TrajectoryUnderTest


class Ended:
    """What came of a rollout, and what it cost."""

    def __init__(self, subject: TrajectoryUnderTest, result: object, records: list[Record]):
        self.result = result
        self.records = records
        self.history = History(records)
        self.requests = subject.oracle.requests
        self.generated = len(self.requests)
        self.prompts: list[tuple[Message, ...]] = [
            turn.prompt for turn in turns(self.history, subject.task)
        ]


async def ended(rollout, records: list[Record] | None = None, **options) -> Ended:
    """Goes on from these records, to the end."""
    subject = TrajectoryUnderTest(options.pop("oracle", None) or Oracle())
    lease = await subject.lease()
    if records:
        await subject.journal.append(lease, records)
    session = await subject.session(**options)
    await session.log.begin_anew_if_needed()
    try:
        result = await rollout(Rollout(session))
        await session.log.cut_untaken()
        await session.log.append()
    finally:
        await session.episodes.close()
    return Ended(subject, result, list(await subject.journal.history(lease.id)))


async def check_every_kill(rollout, *, oracle: type[Oracle] = Oracle) -> Ended:
    """Nothing that is durable is generated again, and the end is as if nothing had happened."""
    whole = await ended(rollout, oracle=oracle())
    for kept in range(1, len(whole.records) + 1):
        before = whole.records[:kept]
        after = await ended(rollout, before, oracle=oracle())
        where = f"killed after record {kept}, {type(before[-1]).__name__}"
        durable = sum(isinstance(item, Generated) for item in before)
        assert not after.history.forks, f"{where}: {after.history.forks}"
        assert after.generated == whole.generated - durable, where
        assert after.result == whole.result, where
        assert after.prompts == whole.prompts, where
        assert after.history.steps.keys() == whole.history.steps.keys(), where
    return whole
