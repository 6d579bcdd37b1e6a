"""Whatever is killed, and whenever: no process of vLLM outlives what started it."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from holdfast.vllm_server import start
from support.vllm_server.stand_in import SECONDS, StandIn

pytestmark = pytest.mark.timeout(300)


@contextmanager
def served(stand_in: StandIn) -> Iterator["subprocess.Popen[str]"]:
    command = [sys.executable, "-m", "holdfast", "serve", "--engine", "vllm", "--progress"]
    command += ["--until-stdin-closes", "--port", "0", "--engine-python", str(stand_in.python)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        text=True, env=stand_in.environment,
    ) as owner:  # fmt: skip
        try:
            yield owner
        finally:
            owner.kill()


def until_it_serves(owner: "subprocess.Popen[str]") -> None:
    assert owner.stdout is not None
    assert any(line.startswith("serving ") for line in owner.stdout), "it ended"


def until_all_run(stand_in: StandIn) -> list[int]:
    """The server, the engine with its tracker of resources, and the worker."""
    deadline = time.monotonic() + SECONDS
    while len(running := stand_in.processes()) < 4 or not shared_memory(stand_in):
        assert time.monotonic() < deadline, f"only {running} run"
        time.sleep(0.02)
    return running


def shared_memory(stand_in: StandIn) -> list[Path]:
    """What its processes share now."""
    prefixes = tuple(start.shared_prefix(str(place)) for place in stand_in.places.iterdir())
    return [p for p in Path(start.SHARED_MEMORY).iterdir() if p.name.startswith(prefixes)]


def kill_owner(owner: "subprocess.Popen[str]", stand_in: StandIn) -> None:
    owner.kill()


def kill_server(owner: "subprocess.Popen[str]", stand_in: StandIn) -> None:
    pids = stand_in.started()["pids"]
    assert isinstance(pids, list)
    os.kill(pids[0], signal.SIGKILL)


def kill_both(owner: "subprocess.Popen[str]", stand_in: StandIn) -> None:
    kill_server(owner, stand_in)
    owner.kill()


def close_pipe(owner: "subprocess.Popen[str]", stand_in: StandIn) -> None:
    assert owner.stdin is not None
    owner.stdin.close()


def terminate(owner: "subprocess.Popen[str]", stand_in: StandIn) -> None:
    owner.terminate()


ENDINGS = [kill_owner, kill_server, kill_both, close_pipe, terminate]


@pytest.mark.parametrize("end", ENDINGS)
@pytest.mark.parametrize("fault", ["", "waits"], ids=["while it serves", "while it starts"])
def test_no_process_and_no_shared_memory_is_left(
    end: Callable[["subprocess.Popen[str]", StandIn], None], fault: str, tmp_path: Path
) -> None:
    stand_in = StandIn(tmp_path, fault=fault)
    with served(stand_in) as owner:
        if not fault:
            until_it_serves(owner)
        until_all_run(stand_in)
        memory = shared_memory(stand_in)
        end(owner, stand_in)
        stand_in.wait_until_gone()
        owner.wait(SECONDS)
        assert memory
        assert not any(path.exists() for path in memory)
        assert list(stand_in.places.iterdir()) == []


def test_what_is_left_when_everything_is_killed_at_once_is_removed_by_the_next_start(
    tmp_path: Path,
) -> None:
    stand_in = StandIn(tmp_path)
    with served(stand_in) as owner:
        until_it_serves(owner)
        running = until_all_run(stand_in)
        for pid in (*running, owner.pid):  # Stopped first: none of them sees another one end.
            os.kill(pid, signal.SIGSTOP)
        for pid in (*running, owner.pid):
            os.kill(pid, signal.SIGKILL)
        stand_in.wait_until_gone()
    (place,) = stand_in.places.iterdir()
    memory = shared_memory(stand_in)
    assert memory
    with served(stand_in) as owner:
        until_it_serves(owner)
        assert not place.exists()
        assert not any(path.exists() for path in memory)
