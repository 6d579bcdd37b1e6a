"""Drivers of workspaces: with and without bubblewrap, as other users, and killed."""

import asyncio
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

import holdfast
from holdfast.environments.workspace import Workspace
from holdfast.records.errors import UsageError
from support.environments.workspaces import both, needs_bwrap, opened, running, shell, start

SOURCE = str(Path(holdfast.__file__).parent.parent)


@pytest.fixture
def no_bwrap(tmp_path) -> dict[str, str]:
    """An environment in which there is none."""
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("nice", "setpriv", "prlimit"):
        os.symlink(shutil.which(name), tools / name)
    return {**os.environ, "PATH": str(tools)}


@pytest.fixture
def open_to_all():
    """A folder that other users can enter. Those of the tests are closed by any session of pytest
    that begins."""
    folder = Path(tempfile.mkdtemp(prefix="holdfast-tests-", dir="/tmp"))
    folder.chmod(0o711)
    yield folder
    shutil.rmtree(folder)


def test_without_bwrap_the_user_is_told_and_commands_run_plainly(tmp_path, no_bwrap):
    out, err = start(str(tmp_path / "w"), "auto", "echo hi", env=no_bwrap).communicate(timeout=60)
    assert out.split("\n")[:2] == ["none", "hi"]
    assert "run commands without a sandbox: there is no `bwrap`" in err


def test_without_bwrap_one_who_wants_it_is_refused(tmp_path, no_bwrap):
    out, err = start(str(tmp_path / "w"), "bwrap", "echo hi", env=no_bwrap).communicate(timeout=60)
    assert "hi" not in out
    assert "UsageError: sandbox='bwrap' does not work on this machine: there is no `bwrap`" in err


@needs_bwrap
@pytest.mark.skipif(os.geteuid() != 0, reason="the tests run as another user already")
def test_another_user_has_the_same_sandbox(open_to_all):
    """With the machine's own Python, since the tests' may lie where others cannot look."""
    packages = next(path for path in sys.path if path.endswith("site-packages"))
    python = f"/usr/bin/python3.{sys.version_info.minor}"
    path = f"{SOURCE}:{packages}"
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
    become = ("setpriv", "--reuid", "1234", "--regid", "1234", "--clear-groups", "--")
    probe = [*become, python, "-c", "import holdfast, msgspec"]
    if not os.path.exists(python) or subprocess.run(probe, env=env, capture_output=True).returncode:
        pytest.skip(f"{python} cannot import holdfast as another user")
    root = open_to_all / "w"
    root.mkdir(mode=0o700)
    os.chown(root, 1234, 1234)
    command = (
        "id -u; hostname; unshare -U true; touch /x; "
        "cat /proc/sys/vm/swappiness > /proc/sys/vm/swappiness; "
        "ulimit -u; mkdir -m 000 closed; touch file; chmod 000 file"
    )
    other = start(str(root), "bwrap", command, python=python, before=become, env=env, cwd="/")
    out, err = other.communicate(timeout=60)
    lines = out.split("\n")
    assert lines[:3] == ["bwrap", "1000", "workspace"], err
    assert "unshare failed" in out
    assert out.count("denied") + out.count("Read-only") == 2
    assert "256" in lines
    assert lines[-3:] == ["b", "[exit code 0]", ""], err
    assert not os.listdir(root)


# --- a driver that is killed


@both
def test_a_killed_driver_takes_its_commands_along_and_the_next_one_cleans_up(tmp_path, sandbox):
    mark = f"10{secrets.randbelow(10**9)}"
    root = tmp_path / "w"
    driver = start(str(root), sandbox, f"touch started; exec sleep {mark}")
    try:
        while not running(f"sleep\0{mark}"):
            assert driver.poll() is None, driver.stderr.read()
            time.sleep(0.01)
        driver.send_signal(signal.SIGKILL)
    finally:
        driver.kill()
        driver.communicate()
    while running(f"sleep\0{mark}"):
        time.sleep(0.01)
    (left,) = (path for path in root.iterdir() if path.is_dir())
    assert (left / "000001" / "files" / "started").exists()

    async def run():
        async with opened(sandbox=sandbox, root=str(root)) as workspace:
            assert not left.exists()
            return workspace.path

    assert not os.path.exists(asyncio.run(run()))


def test_what_a_killed_driver_left_running_is_ended_by_the_next_one(tmp_path):
    mark = f"10{secrets.randbelow(10**9)}"
    root = tmp_path / "w"
    driver = start(str(root), "none", f"sleep {mark} & sleep {mark}; true")
    try:
        while len(running(f"sleep\0{mark}")) < 2:
            assert driver.poll() is None, driver.stderr.read()
            time.sleep(0.01)
    finally:
        driver.kill()
        driver.communicate()
    shell("true", sandbox="none", root=str(root))
    assert not running(f"sleep\0{mark}")


@needs_bwrap
def test_a_sandbox_that_outlived_its_driver_is_ended_by_the_next_one(tmp_path):
    """bwrap can be killed in the moment before its child asks to die with it: so it is, here."""
    mark = f"10{secrets.randbelow(10**9)}"
    root = tmp_path / "w"
    shell("true", root=str(root))
    place = root / secrets.token_hex(6) / "000001" / "files"
    place.mkdir(parents=True)
    (root / f"{place.parent.parent.name}.lock").touch()
    command = [
        *("bwrap", "--ro-bind", "/usr", "/usr", "--symlink", "usr/lib", "/lib"),
        *("--symlink", "usr/lib64", "/lib64", "--bind", str(place), "/workspace"),
    ]
    orphan = subprocess.Popen([*command, "--unshare-pid", "/usr/bin/sleep", mark], cwd="/", env={})
    try:
        while not running(f"sleep\0{mark}"):
            assert orphan.poll() is None
            time.sleep(0.01)
        drive = start(str(root), "none", "true")
        out, err = drive.communicate(timeout=60)
        assert "[exit code 0]" in out, err
        assert not running(f"sleep\0{mark}")
        assert not place.exists()
    finally:
        orphan.kill()
        orphan.wait()


@needs_bwrap
def test_commands_that_are_stopped_while_they_start_leave_nothing():
    mark = f"10{secrets.randbelow(10**9)}"

    async def stop_commands(number: int):
        async with opened(sandbox="bwrap") as workspace:
            for turn in range(8):
                await workspace.shell(f"sleep {mark}", 0.002 * (1 + 8 * number + turn))

    async def run():
        await asyncio.gather(*(stop_commands(number) for number in range(5)))

    asyncio.run(run())
    assert not running(mark)


def test_workspaces_of_living_drivers_are_left_alone(tmp_path):
    root = tmp_path / "w"

    async def run():
        async with opened({"a": "b"}, sandbox="none", root=str(root)) as workspace:
            other = start(str(root), "none", "echo hi")
            out, _ = await asyncio.to_thread(other.communicate, timeout=60)
            assert "hi" in out
            return await workspace.shell("cat a")

    assert asyncio.run(run()) == "b\n[exit code 0]"


def test_a_root_that_others_may_write_to_is_refused(tmp_path):
    tmp_path.chmod(0o777)
    with pytest.raises(UsageError, match="others may write"):
        shell("true", root=str(tmp_path))


def test_closing_twice_or_before_opening_harms_nothing():
    async def run():
        await Workspace().close()
        async with opened() as workspace:
            await workspace.close()

    asyncio.run(run())
