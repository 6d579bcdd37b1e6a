"""Folders and files of this user alone, also where everybody may write."""

import multiprocessing
import os
import stat
from pathlib import Path

import pytest

from holdfast.private_files import open_private, private_folder, stored_secret, write_private
from holdfast.records.errors import UsageError

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
SOMEBODY = 1234


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture(params=[0o000, 0o002, 0o022], ids=oct)
def umask(request):
    before = os.umask(request.param)
    yield
    os.umask(before)


def test_what_is_made_is_the_users_alone_whatever_the_umask_is(tmp_path, umask):
    folder = private_folder(tmp_path / "a" / "b")
    os.close(open_private(folder / "file"))
    write_private(folder / "whole", b"x")
    assert [mode_of(path) for path in (folder.parent, folder)] == [0o700, 0o700]
    assert [mode_of(folder / name) for name in ("file", "whole")] == [0o600, 0o600]
    assert sorted(path.name for path in folder.iterdir()) == ["file", "whole"]


def test_a_folder_that_others_only_read_is_taken_as_it_is(tmp_path):
    tmp_path.chmod(0o755)
    assert private_folder(tmp_path) == tmp_path.resolve()
    assert mode_of(tmp_path) == 0o755


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o775])
def test_a_folder_that_others_may_write_to_is_refused(tmp_path, mode):
    tmp_path.chmod(mode)
    with pytest.raises(UsageError, match="others may write to"):
        private_folder(tmp_path)


@as_root
def test_a_folder_of_somebody_else_is_refused(tmp_path):
    folder = tmp_path / "theirs"
    folder.mkdir(0o700)
    os.chown(folder, SOMEBODY, SOMEBODY)
    with pytest.raises(UsageError, match="belongs to somebody else"):
        private_folder(folder)


@as_root
@pytest.mark.parametrize("end", ["", "/"])
@pytest.mark.parametrize("exists", [True, False])
def test_a_link_of_somebody_else_is_not_followed(tmp_path, exists, end):
    target, link = tmp_path / "target", tmp_path / "link"
    if exists:
        target.mkdir(0o700)
    link.symlink_to(target)
    os.lchown(link, SOMEBODY, SOMEBODY)
    with pytest.raises(UsageError):
        private_folder(f"{link}{end}")
    assert target.exists() == exists


def test_a_file_is_no_folder(tmp_path):
    (tmp_path / "file").write_text("theirs")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(UsageError, match="is not a folder"):
            private_folder(path)


def test_a_file_is_not_opened_through_a_link(tmp_path):
    victim, link = tmp_path / "victim", tmp_path / "link"
    victim.write_text("precious")
    link.symlink_to(victim)
    with pytest.raises(OSError, match="symbolic link"):
        open_private(link, os.O_RDWR | os.O_TRUNC)
    assert victim.read_text() == "precious"


def _store(path: str, number: int, results: "multiprocessing.Queue[bytes]") -> None:
    results.put(stored_secret(Path(path), bytes([number]) * 8))


def test_processes_that_make_a_secret_at_once_get_the_same(tmp_path):
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    path = str(tmp_path / "secret")
    processes = [context.Process(target=_store, args=(path, n, results)) for n in range(4)]
    for process in processes:
        process.start()
    secrets = {results.get(timeout=60) for _ in processes}
    for process in processes:
        process.join()
    assert len(secrets) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["secret"]


def test_a_secret_that_others_can_read_is_none(tmp_path):
    path = tmp_path / "secret"
    stored_secret(path, b"secret")
    path.chmod(0o640)
    with pytest.raises(UsageError, match="others can read"):
        stored_secret(path, b"another")
