"""Weights through Ray's object store: put once, fetched once by each node, read by its engines."""

import asyncio
import os
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray", reason="the extra `ray`")

from holdfast.records.errors import UsageError
from holdfast.weights.strategies.object_store import NodeReceiver, ObjectStoreStrategy
from support.exhaustive import points
from support.weights.engines import SEED, engine, synced
from support.weights.versions import mislabelled, version_at


def test_without_a_cluster_it_is_refused() -> None:
    async def body(engines: Any) -> None:
        with pytest.raises(UsageError, match="connected to no Ray cluster"):
            async with synced(engines, ObjectStoreStrategy(run="r"), wanted="object-store"):
                pass

    with engine() as first:
        asyncio.run(body([first]))


@pytest.mark.skipif(points(0, 1) == 0, reason="exhaustive: set HOLDFAST_EXHAUSTIVE=1")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.timeout(300)
def test_all_engines_of_a_node_are_fed_by_one_receiver(tmp_path: Path) -> None:
    import ray

    async def body(engines: Any) -> None:
        versions = [version_at(tmp_path / "out", step) for step in (1, 2, 3)]
        way = ObjectStoreStrategy(run="r", stage=tmp_path / "shm")
        stage = tmp_path / "shm" / f"holdfast-{os.geteuid()}-r"
        async with synced(engines, way) as it:
            assert len(way._receivers) == 1
            await it.sync.publish_first(versions[0])
            calls = it.running(4)
            await it.under_way(4)
            await it.sync.publish(versions[1])
            assert it.weights == ["step-2", "step-2"]
            for number, completion in enumerate(await asyncio.gather(*calls)):
                names = [span.version for span in completion.versions]
                assert names == ["step-1", "step-2"]
                assert mislabelled(completion, it.prompt(number), SEED, versions) == []
            await it.sync.publish(versions[2])
            kept = sorted(path.name for path in stage.iterdir())
            assert kept == ["step-2", "step-3"]
        assert not stage.exists()

    ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False)
    try:
        with ExitStack() as stack:
            asyncio.run(body([stack.enter_context(engine()) for _ in range(2)]))
    finally:
        ray.shutdown()


def test_a_receiver_makes_whole_folders_of_buckets_wherever_they_are_cut(tmp_path: Path) -> None:
    receiver = NodeReceiver(str(tmp_path))
    files = {"a": 5, "empty": 0, "b": 4, "none": 0}
    receiver.begin("step-1", files)
    receiver.append(b"aaa")
    assert not (tmp_path / "step-1").exists()
    with pytest.raises(ValueError, match="2 bytes of a are missing"):
        receiver.finish("step-1")
    receiver.begin("step-1", files)  # Sent again, from its beginning.
    for bucket in (b"aaa", b"aabb", b"bb"):
        receiver.append(bucket)
    receiver.finish("step-1")
    result = {path.name: path.read_bytes() for path in (tmp_path / "step-1").iterdir()}
    assert result == {"a": b"aaaaa", "empty": b"", "b": b"bbbb", "none": b""}
    receiver.begin("step-1", files)
    receiver.append(b"what is there already is left alone")
    receiver.finish("step-1")
    assert (tmp_path / "step-1" / "a").read_bytes() == b"aaaaa"


def test_a_receiver_takes_no_folder_that_others_may_change(tmp_path: Path) -> None:
    stage = tmp_path / "holdfast-r"
    (stage / "step-1").mkdir(parents=True)
    stage.chmod(0o777)
    with pytest.raises(UsageError, match="others may write"):
        NodeReceiver(str(stage)).begin("step-1", {})
