"""Roots of workspaces: what lies there besides is nobody's to remove, links of others lead nowhere,
and what cannot be removed stops nobody."""

import logging
import os
import signal
import subprocess
import sys

import pytest

from holdfast.environments.workspace import folder as folders
from holdfast.records.errors import EnvironmentBroken, UsageError

HOLDS = """
import sys
from holdfast.environments.workspace import folder
print(folder.new_place(sys.argv[1]), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def root(tmp_path):
    yield tmp_path / "root"
    # They would look for their folders when this process ends.
    for room in [room for room in folders._rooms.values() if room.path.startswith(str(tmp_path))]:
        room._leave()


def left_by_a_killed_process(root) -> str:
    command = [sys.executable, "-c", HOLDS, str(root)]
    holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    place = holder.stdout.readline().strip()
    holder.send_signal(signal.SIGKILL)
    holder.communicate()
    return os.path.dirname(place)


def test_locks_of_other_programs_stay_and_so_does_what_is_called_like_them(root):
    root.mkdir()
    (root / "uv.lock").write_text("theirs")
    (root / "uv").mkdir()
    (root / "uv" / "work").write_text("theirs")
    (root / "0123456789ab.lock.lock").write_text("theirs")
    (root / "0123456789AB.lock").write_text("theirs")
    abandoned = left_by_a_killed_process(root)
    folders.new_place(str(root))
    assert not os.path.exists(abandoned)
    assert not os.path.exists(abandoned + folders.LOCK)
    assert (root / "uv.lock").read_text() == "theirs"
    assert (root / "uv" / "work").read_text() == "theirs"
    assert (root / "0123456789ab.lock.lock").exists()
    assert (root / "0123456789AB.lock").exists()


def test_a_link_of_ones_own_is_followed(root, tmp_path):
    target = tmp_path / "target"
    target.mkdir(mode=0o700)
    root.symlink_to(target)
    assert folders.new_place(str(root)).startswith(f"{os.path.realpath(target)}/")


def test_a_file_is_no_root(root):
    root.write_text("a file")
    with pytest.raises(UsageError, match="is not a folder"):
        folders.new_place(str(root))
    assert root.read_text() == "a file"


def test_what_cannot_be_removed_stops_nobody_and_is_removed_when_it_can_be(
    root, monkeypatch, caplog
):
    abandoned = left_by_a_killed_process(root)
    remove = folders.remove

    def cannot(path: str) -> None:
        if path == abandoned:
            raise EnvironmentBroken(f"the workspace {path} cannot be removed: not permitted")
        remove(path)

    monkeypatch.setattr(folders, "remove", cannot)
    caplog.set_level(logging.WARNING, "holdfast.environments")
    assert os.path.isdir(folders.new_place(str(root)))
    assert "not permitted" in caplog.text
    assert os.path.isdir(abandoned)
    monkeypatch.undo()
    # By another process; the lock is not kept by the one that could not.
    again = left_by_a_killed_process(root)
    assert not os.path.exists(abandoned)
    assert os.path.isdir(again)
