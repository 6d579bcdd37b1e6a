"""The actor of one process: every report arrives, and nothing leaks."""

import contextlib
import os
import sys
import time

import msgspec
import pytest

from holdfast import log_files
from holdfast.cluster import host_actor
from holdfast.cluster.host_actor import ProcessHost
from holdfast.cluster.messages import ChildEnd, ProcessJob

LONG_SECONDS = 60.0


@pytest.fixture
def host(monkeypatch):
    monkeypatch.setattr(host_actor, "_node_address", lambda: "127.0.0.1")
    process_host = ProcessHost()
    yield process_host
    if process_host._process is not None:
        with contextlib.suppress(BrokenPipeError):  # What it was told last, it did not read.
            process_host._process.stdin.close()


def job(folder, code: str) -> bytes:
    variables = {log_files.LOGS: str(folder)}
    return msgspec.json.encode(ProcessJob(["-c", code], "worker", "r", "j", variables, "begin"))


def test_the_last_report_is_there_when_the_end_is(host, tmp_path):
    """Of a reader that is slow, as on a busy machine."""
    read = host._read

    def read_slowly(reading: int) -> None:
        time.sleep(0.5)
        read(reading)

    host._read = read_slowly
    code = 'import os, sys; os.write(int(sys.argv[1]), b\'{"refused": "other code"}\\n\')'
    host.start(job(tmp_path, code))
    assert msgspec.json.decode(host.wait(LONG_SECONDS), type=ChildEnd).code == 0
    assert host.reports(0) == [b'{"refused": "other code"}\n']


def test_a_process_that_cannot_be_started_leaves_no_pipe(host, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "none"))
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(FileNotFoundError):
        host.start(job(tmp_path, ""))
    assert len(os.listdir("/proc/self/fd")) == before
