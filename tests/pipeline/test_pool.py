"""DataPool: a view of the journal with a bound; nothing mixes, is dropped, or hangs."""

import asyncio

import pytest
from msgspec import structs

from holdfast.journal.sqlite.journal import MemoryJournal
from holdfast.pipeline.pool import DataPool, PoolChannel, PoolFull
from holdfast.records.errors import UsageError
from holdfast.records.message import user
from holdfast.records.step import VersionSpan
from holdfast.records.trajectory import Status
from support.records import consuming, generated, joined, make_tasks, settle, spec, started


async def a_pool(bound: int = 2):
    journal = MemoryJournal()
    run = await journal.create_run(spec(), (), sealed=False)
    consumer = await consuming(journal, run)
    return journal, run, DataPool(journal, run, bound=bound, consumer=consumer)


def names_of(batch) -> list[str]:
    return [members[0].key.task for members in batch.groups]


async def settle_all(journal, run) -> None:
    worker = await joined(journal, run)
    for claim in await journal.claim(worker, groups=100):
        await settle(journal, claim)


async def test_a_duplicate_submission_is_the_same_and_another_payload_an_error():
    _, run, pool = await a_pool()
    assert await pool.submit(make_tasks("a", "b")) == 2
    assert await pool.submit(make_tasks("a", "b"), wait=0.0) == 0, "it takes no room"
    other = structs.replace(make_tasks("a")[0], messages=(user("other"),))
    with pytest.raises(UsageError, match="the same id stands for the same content"):
        await pool.submit([other])
    assert (await pool.stats()).admitted == 2
    assert run.spec.name == "run"


async def test_a_full_pool_makes_who_submits_wait_and_drops_nothing():
    journal, run, pool = await a_pool()
    await pool.submit(make_tasks("a", "b"))
    with pytest.raises(PoolFull, match=r"no room for 1 groups after 0\.01 s"):
        await pool.submit(make_tasks("c"), wait=0.01)
    waiting = asyncio.create_task(pool.submit(make_tasks("c"), wait=60.0))
    await settle_all(journal, run)
    await asyncio.sleep(0.01)
    assert not waiting.done(), "what is settled is not trained yet"
    batch = await pool.next_batch(1, groups=1)
    await journal.commit(await_consumer(pool), 1)
    journal.changes.notify()
    assert await waiting == 1
    stats = await pool.stats()
    assert names_of(batch) == ["a"]
    assert (stats.trained, stats.ready, stats.rolling_out, stats.dismissed) == (1, 1, 1, {})


async def test_the_bound_holds_for_all_who_submit_at_once():
    journal, _, pool = await a_pool(bound=4)
    real = journal.ledger

    async def ledger(*args, **more):
        result = await real(*args, **more)
        await asyncio.sleep(0)  # As a server: others look meanwhile.
        return result

    journal.ledger = ledger
    parts = [make_tasks(*part) for part in ("abcd", "efgh", "ijkl")]
    done = await asyncio.gather(
        *(pool.submit(part, wait=0.01) for part in parts), return_exceptions=True
    )
    assert [type(result) for result in done] == [int, PoolFull, PoolFull]
    assert (await pool.stats()).open == 4


async def test_who_waits_for_room_holds_up_nobody():
    _, _, pool = await a_pool()
    await pool.submit(make_tasks("a", "b"))
    waiting = asyncio.create_task(pool.submit(make_tasks("c")))
    await asyncio.sleep(0.01)
    assert await pool.submit(make_tasks("a"), wait=0.0) == 0, "a repeated one needs no room"
    assert not waiting.done()
    waiting.cancel()


def await_consumer(pool):
    return pool._consumer


async def test_more_than_the_pool_holds_is_refused_at_once():
    _, _, pool = await a_pool()
    with pytest.raises(UsageError, match="submit them in parts"):
        await pool.submit(make_tasks("a", "b", "c"))
    with pytest.raises(UsageError, match="bound"):
        DataPool(MemoryJournal(), pool._run, bound=0)


async def test_a_sealed_pool_gives_a_last_smaller_batch_and_then_its_end_without_a_wait():
    journal, run, pool = await a_pool(bound=3)
    await pool.submit(make_tasks("a", "b", "c"))
    await pool.seal()
    await pool.seal()
    with pytest.raises(UsageError, match="sealed"):
        await pool.submit(make_tasks("d"))
    assert await pool.submit(make_tasks("a")) == 0, "a repeated submission is none"
    early = await pool.next_batch(1, groups=2)
    assert (early.groups, early.ended) == ((), False), "a straggler after sealing still comes"
    await settle_all(journal, run)
    assert names_of(await pool.next_batch(1, groups=2)) == ["a", "b"]
    last = await pool.next_batch(2, groups=2)
    assert (names_of(last), last.ended) == (["c"], True)
    end = await pool.next_batch(3, groups=2, wait=60.0)
    assert (end.groups, end.ended) == ((), True)


async def test_a_group_that_was_lost_before_its_first_call_is_worked_on_by_the_next():
    """Its worker died between the claim and the first request."""
    journal, run, pool = await a_pool()
    await pool.submit(make_tasks("a"))
    worker = await joined(journal, run)
    assert len(await journal.claim(worker, groups=1)) == 1
    await journal.leave(worker)
    await settle_all(journal, run)
    assert names_of(await pool.next_batch(1, groups=1)) == ["a"]


async def test_only_a_consumer_takes_batches():
    journal, run, _ = await a_pool()
    with pytest.raises(UsageError, match="give DataPool a consumer"):
        await DataPool(journal, run, bound=1).next_batch(1, groups=1)


# --- the last step


async def test_the_last_step_of_a_running_trajectory_is_its_last_durable_one():
    journal, run, pool = await a_pool()
    await pool.submit(make_tasks("a"))
    assert await pool.get_last_step("run/a/1") is None
    worker = await joined(journal, run)
    (claim,) = await journal.claim(worker, groups=1)
    lease = claim.open[1]
    second = generated("1", base="0", keep=5, ids=(7, 8), versions=(VersionSpan("step-3", 0, 2),))
    await journal.append(lease, [started(), generated("0"), second], status=Status.RUNNING)
    last = await pool.get_last_step("run/a/1")
    assert last is not None
    assert (last.path, last.ids, last.is_settled) == ("1", [7, 8], False)
    assert last.logprobs == [-0.5, -0.5]
    assert [span.version for span in last.versions] == ["step-3"]
    assert last.message.text == "reply 1"
    assert last.status is Status.RUNNING


async def test_training_and_validation_never_mix():
    journal, _, pool = await a_pool()
    await pool.submit(make_tasks("a"))
    held_out = "run.held-out.step-1"
    validation = await journal.create_run(spec(held_out, samples=1), make_tasks("a"))
    worker = await joined(journal, validation)
    (claim,) = await journal.claim(worker, groups=1)
    await journal.append(claim.open[0], [started(), generated("0")], status=Status.RUNNING)
    key = f"{held_out}/a/0"
    last_step = await pool.get_last_step(key, PoolChannel.VALIDATION)
    assert last_step is not None
    assert last_step.trajectory == key
    for name, channel in ((key, "training"), ("run/a/0", "validation")):
        with pytest.raises(UsageError, match=f"in the channel {channel}"):
            await pool.get_last_step(name, channel)
    batch = await pool.next_batch(1, groups=1)
    assert batch.groups == (), "nothing of a validation is trained"
    assert (await pool.stats()).admitted == 1


async def test_a_channel_that_is_none_is_refused_in_one_line():
    _, _, pool = await a_pool()
    with pytest.raises(UsageError, match="channel='test' is none of training, validation"):
        await pool.get_last_step("run/a/0", "test")


async def test_what_is_open_costs_what_is_open():
    """What has ended is not listed again."""
    journal, run, pool = await a_pool(bound=10)
    await pool.submit(make_tasks(*"abcdef"))
    await settle_all(journal, run)
    await pool.next_batch(1, groups=4)
    assert [e.task for e in await pool.open(step=2)] == ["e", "f"], "taken by an earlier step"
    assert len(await pool.open()) == 6, "no checkpoint holds them yet"
    await journal.commit(pool._consumer, 1)
    assert [e.task for e in await pool.open()] == ["e", "f"]
    listed = []
    real = journal.ledger

    async def ledger(*args, since=0, **more):
        results = await real(*args, since=since, **more)
        listed.append(len(results))
        return results

    journal.ledger = ledger
    await pool.open()
    assert listed == [2]
