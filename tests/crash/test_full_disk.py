"""A real file system that is full: a tmpfs of a few hundred kilobytes, then a larger one."""

import subprocess

import pytest

from holdfast.journal.damage.check import check
from holdfast.testing import FakeEngine
from support.crash.command import export_samples, finished, holdfast, run_words, write_tasks


@pytest.fixture
def small_disk(tmp_path):
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=900k", "holdfast-test", str(place)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting a tmpfs needs root")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_a_disk_that_fills_up_stops_the_run_and_loses_nothing(tmp_path, small_disk):
    tasks = write_tasks(tmp_path / "tasks.jsonl", [f"read{i}" for i in range(150)])
    env = {"HOLDFAST_EFFECTS": str(tmp_path / "effects")}
    with FakeEngine(mean_length=16) as engine:
        undisturbed = tmp_path / "undisturbed"
        undisturbed.mkdir()
        words = run_words(undisturbed, engine, tasks, "--samples", 4)
        assert finished(holdfast(*words, env=env))[0] == 0
        expected, requests = export_samples(undisturbed), engine.stats().requests
        engine.reset()
        words = run_words(small_disk, engine, tasks, "--samples", 4)
        code, _, err = finished(holdfast(*words, env=env))
        assert code == 5, err
        assert "full" in err
        assert "Traceback" not in err
        assert not check(small_disk / "journal.db").findings
        grow = ["mount", "-o", "remount,size=64m", str(small_disk)]
        subprocess.run(grow, check=True)
        code, _, err = finished(holdfast(*words, env=env))
        assert code == 0, err
        assert export_samples(small_disk) == expected
        assert engine.stats().requests <= requests + 64
