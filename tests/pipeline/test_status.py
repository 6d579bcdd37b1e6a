"""What a part says of itself is whole or the one before, and nobody depends on it."""

import os
import time

from holdfast.pipeline.status import RolloutProgress, StatusFile, read_status


def test_a_status_is_written_when_something_else_is_done(tmp_path):
    file = StatusFile(tmp_path / "parts" / "trainer.json")
    file.update({"step": 1}, doing="waiting")
    file.update({"step": 2, "lag": 1})
    (status,) = read_status(tmp_path / "parts")
    assert (status.part, status.doing, status.numbers) == ("trainer", "waiting", {"step": 1.0})
    file.update({}, doing="training")
    (status,) = read_status(tmp_path / "parts")
    assert (status.doing, status.numbers) == ("training", {"step": 2.0, "lag": 1.0})
    assert status.pid == os.getpid()
    assert time.time() - status.at < 600


def test_what_cannot_be_read_or_written_changes_nothing(tmp_path):
    (tmp_path / "torn.json").write_text('{"doing": ')
    (tmp_path / "other.json").write_text("[]")
    assert read_status(tmp_path) == []
    assert read_status(tmp_path / "nowhere") == []
    (tmp_path / "file").write_text("")
    StatusFile(tmp_path / "file" / "trainer.json").update({"step": 1}, doing="x")


def test_idle_is_the_time_in_which_nothing_runs(monkeypatch):
    now = [100.0]
    monkeypatch.setattr("holdfast.pipeline.status.time.monotonic", lambda: now[0])
    progress = RolloutProgress()
    now[0] += 5
    progress.started()
    progress.started()
    now[0] += 10
    progress.stopped()
    now[0] += 1
    assert progress.idle_seconds == 5
    progress.stopped()
    now[0] += 2
    assert progress.idle_seconds == 7
