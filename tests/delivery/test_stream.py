"""A run that a trainer asks for rollouts: whose it is, who sampled it, and what failed."""

import asyncio
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
from msgspec import structs

from holdfast.delivery.stream import RolloutStream
from holdfast.engine.connect import connect_policy
from holdfast.engine.open_run import RunChanged
from holdfast.engine.running.run_plan import plan_run
from holdfast.engine.settings import Settings
from holdfast.journal import open_journal
from holdfast.journal.sqlite.journal import SqliteJournal
from holdfast.policy.client.replicas import EnginePolicy
from holdfast.records.errors import UsageError
from holdfast.records.group import GroupPolicy
from holdfast.records.sampling import Sampling
from holdfast.records.task import as_tasks
from holdfast.rollout.processors.processor import as_processor
from holdfast.testing import FakeEngine

TASKS = as_tasks([{"id": name, "prompt": name} for name in ("good", "bad", "late")])
GOOD, BAD, LATE = TASKS


@pytest.fixture(scope="module")
def engine():
    with FakeEngine(mean_length=3, dialect="sglang") as result:
        yield result


def stream_of(
    folder: Path,
    engine: FakeEngine,
    held: asyncio.Event | None = None,
    *,
    settings: Settings | None = None,
    seed: int = 1,
):
    """Of groups of two: `bad` fails, and `late` waits for `held`, also when it is stopped."""

    async def solve(t):
        t.add(*t.task.messages)
        await t.generate()
        if t.task.id == "bad":
            raise ValueError("no")
        if held is not None and t.task.id == "late" and t.key.sample == 1:
            try:
                await held.wait()
            finally:
                await held.wait()
        return 1.0

    @asynccontextmanager
    async def connected(journal, consumer):
        policy = EnginePolicy(engine.url, engine.model)
        try:
            yield await connect_policy(policy)
        finally:
            await policy.aclose()

    plan = plan_run(
        "run",
        tasks=(),
        processor=as_processor(solve),
        rollout=("solve", None),
        samples=2,
        sampling=Sampling(max_tokens=4),
        seed=seed,
        group=GroupPolicy(refill=0),
        settings=settings,
    )
    plan = structs.replace(plan, spec=structs.replace(plan.spec, model="fake", renderer="bytes"))
    journal = partial(open_journal, folder / "holdfast.db")
    return RolloutStream(plan, connected, journal=journal, consumer="trainer")


@asynccontextmanager
async def opened(folder, engine, done, **more):
    own = {name: more.pop(name) for name in ("held", "settings", "seed") if name in more}
    stream = stream_of(folder, engine, **own)
    await stream.open(done, **more)
    try:
        yield stream
    finally:
        await stream.close()


async def test_a_group_that_waits_for_a_member_has_not_failed(tmp_path, engine):
    held = asyncio.Event()
    async with opened(tmp_path, engine, 0, held=held) as stream:
        await stream.admit(TASKS)
        await stream.start()
        (first,) = await stream.roll_out(1, [GOOD])
        assert len(first.samples) == 2
        journal, run = stream.journal, stream.run
        while (await journal.progress(run)).settled < 5:  # All but the one that waits.
            await journal.changes.wait(journal.changes.count, timeout=0.1)
        await journal.take(stream.consumer, groups=1)
        assert await stream.dismissals(since=0) == {"too few valid members": 1}, "bad alone"
        assert not await stream.dismissals(since=2)
        held.set()
        assert len((await stream.roll_out(2, [LATE]))[0].samples) == 2


async def test_without_a_step_a_stream_goes_on_after_the_last_commit(tmp_path, engine):
    async with opened(tmp_path, engine, 0) as stream:
        await stream.roll_out(1, [GOOD])
        await stream.commit(1)
    async with opened(tmp_path, engine, None) as stream:
        assert [str(entry.end) for entry in await stream.ledger()] == ["trained"]
    async with opened(tmp_path, engine, 0) as stream:
        assert [str(entry.end) for entry in await stream.ledger()] == ["open"]
        assert await stream.rewind(0) == 0, "its checkpoint holds nothing"


async def test_a_training_that_begins_leaves_the_run_of_another_as_it_is(tmp_path, engine):
    async with opened(tmp_path, engine, 0, begins=True) as stream:
        await stream.roll_out(1, [GOOD])
    async with opened(tmp_path, engine, 0, begins=True) as stream:
        await stream.roll_out(1, [GOOD])  # It had written no checkpoint.
        await stream.commit(1)
        before = await stream.ledger()
        with pytest.raises(UsageError, match="begins anew"):
            await stream.rewind(0)
    with pytest.raises(UsageError, match="trained up to step 1, and the trainer begins anew"):
        async with opened(tmp_path, engine, 0, begins=True):
            pass
    async with opened(tmp_path, engine, 1) as stream:
        assert await stream.ledger() == before


async def test_the_weights_that_sampled_what_is_recorded_have_their_names(tmp_path, engine):
    async with opened(tmp_path, engine, 0) as stream:
        assert await stream.sampled_by([GOOD]) == set()
        await stream.admit([GOOD, LATE])
        assert await stream.sampled_by([GOOD]) == set(), "nothing is sampled yet"
        (group,) = await stream.roll_out(1, [GOOD])
        names = {span.version for sample in group.samples for span in sample.version_spans}
        assert len(names) == 1
        assert await stream.sampled_by([GOOD, BAD]) == names


def watched(monkeypatch, name: str) -> list:
    """The arguments of each call of that operation of the journal."""
    calls, operation = [], getattr(SqliteJournal, name)

    async def call(self, *arguments, **named):
        calls.append((arguments, named))
        return await operation(self, *arguments, **named)

    monkeypatch.setattr(SqliteJournal, name, call)
    return calls


async def test_steps_that_begin_at_once_share_one_engine(tmp_path, engine, monkeypatch):
    joins = watched(monkeypatch, "join")
    async with opened(tmp_path, engine, 0) as stream:
        results = await asyncio.gather(stream.roll_out(None, [GOOD]), stream.roll_out(1, [LATE]))
        assert [len(group.samples) for (group,) in results] == [2, 2]
        await stream.start()
    assert len(joins) == 1, "one worker"


async def test_tasks_that_are_admitted_at_once_are_read_once(tmp_path, engine, monkeypatch):
    tasks = as_tasks([{"id": f"t{number}", "prompt": "p"} for number in range(32)])
    async with opened(tmp_path, engine, 0) as stream:
        calls = watched(monkeypatch, "tasks")
        await asyncio.gather(*(stream.admit([task]) for task in tasks))
        read = [number for _, named in calls for number in named["ordinals"]]
        assert sorted(read) == list(range(32))


async def test_a_run_that_another_process_made_meanwhile_is_compared_too(
    tmp_path, engine, monkeypatch
):
    find_run = SqliteJournal.find_run
    finds = []

    async def find_too_early(self, name):
        """The first look comes before the other process."""
        finds.append(name)
        return None if len(finds) == 1 else await find_run(self, name)

    async with opened(tmp_path, engine, 0) as stream:
        await stream.admit([GOOD])
    monkeypatch.setattr(SqliteJournal, "find_run", find_too_early)
    async with opened(tmp_path, engine, 0):
        finds.clear()
    with pytest.raises(RunChanged, match="seed"):
        async with opened(tmp_path, engine, 0, seed=2):
            pass


async def test_the_lease_is_renewed_until_the_rollouts_have_ended(tmp_path, engine, monkeypatch):
    held = asyncio.Event()
    settings = Settings(lease_seconds=1.0)
    async with opened(tmp_path, engine, 0, held=held, settings=settings) as stream:
        await stream.admit([LATE])
        await stream.start()
        journal, run = stream.journal, stream.run
        while (await journal.progress(run)).settled < 1:
            await journal.changes.wait(journal.changes.count, timeout=0.1)
        closing = asyncio.create_task(stream.close())
        renewals = watched(monkeypatch, "renew")
        while not renewals:
            assert not closing.done()
            await asyncio.sleep(0.01)
        held.set()
        await closing


def test_a_lease_that_was_lost_is_logged_where_nobody_asks(tmp_path, engine, caplog):
    async def main():
        settings = Settings(lease_seconds=1.0)
        async with opened(tmp_path, engine, 0, settings=settings) as stream:
            await stream.journal.unsubscribe(stream.consumer)
            await asyncio.sleep(0.5)

    asyncio.run(main())
    assert "the trainer's lease: LeaseLost" in caplog.text
    assert "never retrieved" not in caplog.text
