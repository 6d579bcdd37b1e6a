"""Versions on disk: copied whole or not at all, two of them kept."""

import shutil
from pathlib import Path

import pytest

from holdfast import crashpoint
from holdfast.records.errors import UsageError
from holdfast.weights.strategies.disk import check_stage, stage_folder
from support.weights.versions import version_at


class Died(Exception):
    pass


def test_a_copy_is_whole_and_the_last_two_are_kept(tmp_path: Path) -> None:
    stage = tmp_path / "shm"
    for step in (1, 2, 3):
        version = version_at(tmp_path / "out", step)
        stage_folder(version, stage)
        copy = stage / version.name / "model.safetensors"
        assert copy.read_bytes() == (version.path / "model.safetensors").read_bytes()
    assert sorted(path.name for path in stage.iterdir()) == ["step-2", "step-3"]
    stage_folder(version_at(tmp_path / "out", 2), stage)
    assert sorted(path.name for path in stage.iterdir()) == ["step-2", "step-3"]


def test_a_copy_that_was_broken_off_is_never_seen(tmp_path: Path) -> None:
    stage, version = tmp_path / "shm", version_at(tmp_path / "out", 1)

    def die(point: str) -> None:
        if point == "weights.staged":
            raise Died

    crashpoint.arm(die)
    try:
        with pytest.raises(Died):
            stage_folder(version, stage)
    finally:
        crashpoint.arm(None)
    assert not (stage / "step-1").exists()
    stage_folder(version, stage)
    assert sorted(path.name for path in stage.iterdir()) == ["step-1"]


def test_a_disk_that_is_too_small_for_two_versions_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = version_at(tmp_path / "out", 1)
    check_stage(tmp_path / "shm", version.path)
    usage = shutil.disk_usage(tmp_path)._replace(free=500)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with pytest.raises(UsageError, match=r"two versions.*--weight-dir"):
        check_stage(tmp_path / "shm", version.path)


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot be used for weights"):
        check_stage(tmp_path / "file" / "shm", tmp_path)
