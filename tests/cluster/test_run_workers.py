"""What a worker held is given back as soon as it is known to be gone, whatever else fails."""

import asyncio

from holdfast.cluster.fleet import FleetSize
from holdfast.cluster.messages import ProcessJob, WorkerReport
from holdfast.cluster.run_workers import ClusterSettings, RunWorkers
from holdfast.journal.sqlite.journal import MemoryJournal
from support.cluster.fake_ray import FakeRay
from support.records import joined, make_tasks, spec

LONG_SECONDS = 60.0


def broken(*_: object) -> None:
    raise OSError("no space left on device")


async def test_a_lease_is_given_back_before_the_log_is_noted():
    ray, journal = FakeRay(), MemoryJournal()
    run = await journal.create_run(spec(samples=1), make_tasks("a"))
    workers = RunWorkers(
        ray,
        journal,
        run,
        settings=ClusterSettings(size=FleetSize(1)),
        worker_job=lambda scorers: ProcessJob([], "worker", "run", "j", {}, ""),
        notify=lambda line: None,
        on_log=broken,
    )
    await workers.workers.grow(1)
    (member,) = workers.workers.members
    lost = await joined(journal, run)
    assert await journal.claim(lost, groups=1)
    await ray.actors[0].report(WorkerReport(worker=lost))
    async with asyncio.timeout(LONG_SECONDS):
        while member.worker is None:
            await asyncio.sleep(0.01)
        await ray.actors[0].end(-9)
        while workers.workers.members:
            await asyncio.sleep(0.01)
    other = await joined(journal, run)
    assert await journal.claim(other, groups=1), "another one has what it held"
    assert isinstance(workers.workers.error, OSError)


async def test_a_scorer_that_is_gone_is_sent_to_nobody_whatever_its_log_does():
    ray, journal = FakeRay(), MemoryJournal()
    run = await journal.create_run(spec(samples=1), make_tasks("a"))
    job = ProcessJob([], "worker", "run", "j", {}, '{"token": "t"}')
    workers = RunWorkers(
        ray,
        journal,
        run,
        settings=ClusterSettings(size=FleetSize(1), scorers=1),
        worker_job=lambda scorers: job,
        scorer_job=lambda: job,
        notify=lambda line: None,
        on_log=broken,
    )
    assert workers.scorers is not None
    await workers.workers.grow(1)
    await workers.scorers.grow(1)
    worker, scorer = ray.actors
    await scorer.end(-9)
    async with asyncio.timeout(LONG_SECONDS):
        while not worker.orders:
            await asyncio.sleep(0.01)
    assert worker.orders[-1].scorers == []
    await worker.end(0)
    await workers.end("over")
