"""An engine has the weights of one training at a time."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from holdfast.records.errors import UsageError
from holdfast.weights.engine_lock import EngineInUse, hold_engines


@contextmanager
def in_own_tmp(folder: Path) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(folder))
        yield


URL = "http://127.0.0.1:1"


@pytest.mark.parametrize("other", [URL, "http://localhost:1/", "http://127.0.0.1:1/v1"])
def test_another_training_is_refused_by_the_name_of_the_first(other: str) -> None:
    with hold_engines([URL, URL], run="first"):
        owner = r"127.0.0.1:1 .*run 'first' in process \d+"
        with pytest.raises(EngineInUse, match=owner), hold_engines([other], run="second"):
            pass
        with hold_engines(["http://127.0.0.1:2"], run="second"):
            pass
    with hold_engines([other], run="second"):
        pass


def test_a_process_that_is_killed_holds_nothing() -> None:
    source = (
        "import sys\nfrom holdfast.weights.engine_lock import hold_engines\n"
        f"with hold_engines([{URL!r}], run='killed'):\n"
        "    print('held', flush=True)\n    sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", source], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        with pytest.raises(EngineInUse, match="run 'killed'"), hold_engines([URL], run="next"):
            pass
        process.kill()
        process.wait()
    with hold_engines([URL], run="next"):
        pass


def test_no_password_of_an_address_is_shown() -> None:
    url = "http://me:s3cret@127.0.0.1:3"
    first, second = hold_engines([url], run="first"), hold_engines([url], run="second")
    with first, pytest.raises(EngineInUse) as refused, second:
        pass
    assert "s3cret" not in str(refused.value)


def test_a_link_in_the_folder_of_locks_empties_no_file(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    with in_own_tmp(tmp_path), hold_engines([URL], run="first"):
        (lock,) = (tmp_path / f"holdfast-engines-{os.geteuid()}").iterdir()
    lock.unlink()
    lock.symlink_to(victim)
    with in_own_tmp(tmp_path), hold_engines([URL], run="second"):
        pass
    assert victim.read_text() == "precious"


def test_a_folder_of_locks_that_others_may_change_is_refused(tmp_path: Path) -> None:
    (tmp_path / f"holdfast-engines-{os.geteuid()}").mkdir()
    (tmp_path / f"holdfast-engines-{os.geteuid()}").chmod(0o777)
    refused = pytest.raises(UsageError, match="others may write")
    with in_own_tmp(tmp_path), refused, hold_engines([URL], run="first"):
        pass
