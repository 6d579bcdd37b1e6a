"""A real file system that is full: a tmpfs of a few hundred kilobytes, then a larger one; under a
file, and under the database of a server."""

import asyncio
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from holdfast.journal.damage.check import check
from holdfast.journal.damage.check_server import check_server
from holdfast.testing import FakeEngine
from support.crash.command import export_samples, finished, holdfast, run_words, write_tasks
from support.journal import postgres_server
from support.journal.own_server import own_server


@pytest.fixture
def small_disk(tmp_path):
    with mounted(tmp_path / "disk", size="900k") as place:
        yield place


@contextmanager
def mounted(place: Path, *, size: str) -> Iterator[Path]:
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "holdfast-test", str(place)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting a tmpfs needs root")
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def resize(disk: Path, size: str) -> None:
    subprocess.run(["mount", "-o", f"remount,size={size}", str(disk)], check=True)


def test_a_disk_that_fills_up_stops_the_run_and_loses_nothing(tmp_path, small_disk):
    tasks = write_tasks(tmp_path / "tasks.jsonl", [f"read{i}" for i in range(150)])
    env = {"HOLDFAST_EFFECTS": str(tmp_path / "effects")}
    with FakeEngine(mean_length=16) as engine:
        undisturbed = tmp_path / "undisturbed"
        undisturbed.mkdir()
        arguments = run_words(undisturbed, engine, tasks, "--samples", 4)
        assert finished(holdfast(*arguments, env=env))[0] == 0
        expected, requests = export_samples(undisturbed), engine.stats().requests
        engine.reset()
        command = run_words(small_disk, engine, tasks, "--samples", 4)
        code, _, err = finished(holdfast(*command, env=env))
        assert code == 5, err
        assert "full" in err
        assert "Traceback" not in err
        assert not check(small_disk / "journal.db").findings
        resize(small_disk, "64m")
        code, _, err = finished(holdfast(*command, env=env))
        assert code == 0, err
        assert export_samples(small_disk) == expected
        # What was in flight, twice: a small record may still fit where another one did not, and its
        # trajectory asks for its next reply before the run has stopped.
        assert engine.stats().requests <= requests + 2 * 64


def test_a_log_that_outgrows_the_disk_is_copied_and_used_again(tmp_path):
    """The journal ends with 3 MB, and its log would have 20 MB or more by then."""
    tasks = write_tasks(tmp_path / "tasks.jsonl", [f"read{i}" for i in range(150)])
    env = {"HOLDFAST_EFFECTS": str(tmp_path / "effects")}
    with FakeEngine(mean_length=16) as engine, mounted(tmp_path / "disk", size="10m") as disk:
        code, _, err = finished(holdfast(*run_words(disk, engine, tasks, "--samples", 4), env=env))
        assert code == 0, err
        assert not check(disk / "journal.db").findings


@pytest.mark.exhaustive
@pytest.mark.timeout(600)
@pytest.mark.skipif(postgres_server.binaries() is None, reason="needs a PostgreSQL server")
def test_a_server_whose_disk_fills_up_stops_the_run_and_loses_nothing(tmp_path):
    """The database has a disk of its own; the server's log is elsewhere, as a failing commit of
    that would end the server."""
    tasks = write_tasks(tmp_path / "tasks.jsonl", [f"read{i}" for i in range(150)])
    env = {"HOLDFAST_EFFECTS": str(tmp_path / "effects")}
    with (
        FakeEngine(mean_length=16) as engine,
        own_server() as server,
        mounted(server.folder / "disk", size="64m") as disk,
    ):
        undisturbed = tmp_path / "undisturbed"
        undisturbed.mkdir()
        arguments = run_words(undisturbed, engine, tasks, "--samples", 4)
        assert finished(holdfast(*arguments, env=env))[0] == 0
        expected, requests = export_samples(undisturbed), engine.stats().requests
        engine.reset()
        shutil.chown(disk, "nobody", "nogroup")
        server.psql("postgres", f"CREATE TABLESPACE small LOCATION '{disk}'")
        server.psql("postgres", "ALTER DATABASE runs SET TABLESPACE small")
        resize(disk, f"{used(disk) + (1 << 20)}")
        command = run_words(tmp_path, engine, tasks, "--samples", 4, journal=server.url)
        code, _, err = finished(holdfast(*command, env=env))
        assert code == 5, err
        assert "is full" in err
        assert "Traceback" not in err
        assert 0 < engine.stats().requests < requests
        assert not asyncio.run(check_server(server.url)).findings
        resize(disk, "64m")
        code, _, err = finished(holdfast(*command, env=env))
        assert code == 0, err
        assert export_samples(tmp_path, journal=server.url) == expected
        # What was in flight, and what came of it before everybody knew.
        assert engine.stats().requests <= requests + 4 * 64


def used(disk: Path) -> int:
    room = os.statvfs(disk)
    return (room.f_blocks - room.f_bfree) * room.f_frsize
