"""How many workers there are for how much that is open, and errors that somebody sees."""

import asyncio
import threading

import pytest

from holdfast.cluster.fleet import Fleet, FleetSize, WorkerRefused
from holdfast.cluster.member import Resources
from holdfast.cluster.messages import Order, ProcessJob, WorkerReport
from support.cluster.fake_ray import FakeRay

JOB = ProcessJob([], "worker", "r", "j", {}, "")
LONG_SECONDS = 60.0


async def nothing(*_: object) -> None:
    pass


async def broken(*_: object) -> None:
    raise OSError("no space left on device")


def a_fleet(ray: FakeRay, *, lines: list[str] | None = None, **options) -> Fleet:
    return Fleet(
        ray,
        lambda: JOB,
        what="worker",
        resources=Resources(),
        notify=([] if lines is None else lines).append,
        **{"on_gone": nothing, **options},
    )


async def until(condition) -> None:
    async with asyncio.timeout(LONG_SECONDS):
        while not condition():
            await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    ("most", "each", "open_", "room", "wanted"),
    [
        (40, 64, 10_000, 8, 40),  # As many as were asked for: Ray may bring more nodes.
        (40, 64, 3, 8, 3),  # No more than there is to do.
        (40, 64, 0, 8, 1),
        (None, 64, 10_000, 8, 8),  # As many as have room.
        (None, 64, 65, 8, 2),
        (None, 64, 1, 8, 1),
    ],
)
def test_the_fleet_grows_with_the_queue_and_not_beyond(most, each, open_, room, wanted):
    assert FleetSize(most, each).wanted(open_, room=room) == wanted


async def test_an_error_after_the_end_of_a_process_ends_the_fleet():
    ray = FakeRay()
    fleet = a_fleet(ray, on_gone=broken)
    await fleet.grow(1)
    await ray.actors[0].end()
    await until(lambda: not fleet.members)
    assert isinstance(fleet.error, OSError)
    await fleet.grow(1)
    assert len(ray.actors) == 1, "nothing is started after it"


async def test_a_process_is_judged_whatever_came_after_its_end():
    ray = FakeRay()
    fleet = a_fleet(ray, on_gone=broken)
    await fleet.grow(1)
    await ray.actors[0].report(WorkerReport(refused="other code"))
    await ray.actors[0].end()
    await until(lambda: not fleet.members)
    assert isinstance(fleet.error, WorkerRefused)


async def test_an_error_while_a_report_is_handled_ends_the_fleet_and_not_the_process():
    ray = FakeRay()
    fleet = a_fleet(ray, on_report=broken)
    await fleet.grow(1)
    await ray.actors[0].report(WorkerReport(url="http://here"))
    await until(lambda: fleet.error is not None)
    assert isinstance(fleet.error, OSError)
    assert not ray.killed
    stopping = asyncio.create_task(fleet.stop("an error", grace=LONG_SECONDS))
    await until(lambda: ray.actors[0].orders)
    assert ray.actors[0].orders == [Order(stop="an error")], "it may finish what is in flight"
    await ray.actors[0].end(0)
    await stopping


async def test_reports_that_nobody_can_read_end_the_fleet():
    ray = FakeRay()
    fleet = a_fleet(ray)
    await fleet.grow(1)
    await ray.actors[0].report(b"{")
    await until(lambda: not fleet.members)
    assert fleet.error is not None
    assert ray.killed == ray.actors


async def test_an_error_while_the_fleet_stops_is_shown():
    ray, lines = FakeRay(), []
    fleet = a_fleet(ray, lines=lines, on_gone=broken)
    await fleet.grow(1)
    await ray.actors[0].end(0)
    await fleet.stop("over", grace=LONG_SECONDS)
    await until(lambda: lines)
    assert "no space left" in lines[0]


@pytest.mark.parametrize(
    ("options", "started"), [({"one_per_node": True}, 3), ({"off_gpu_nodes": True}, 2), ({}, 2)]
)
async def test_the_loop_does_not_wait_for_the_list_of_nodes(options, started):
    """Ray asks its control plane for it."""

    threads = []

    class Watched(FakeRay):
        def nodes(self):
            threads.append(threading.current_thread())
            return super().nodes()

    pytest.importorskip("ray", reason="the extra `ray`")
    ray = Watched(3)
    fleet = a_fleet(ray, **options)
    assert await fleet.room() == 12
    await fleet.grow(2)
    assert len(ray.actors) == started
    assert threading.main_thread() not in threads
    for actor in ray.actors:
        await actor.end(0)
    await fleet.stop("over", grace=LONG_SECONDS)
