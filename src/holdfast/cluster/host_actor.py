"""The actor that starts one process on its node, and ends it.

The process runs this interpreter, in its own session and with its own log file. Its reports are
always read, and it is reaped. It ends with the actor, because its standard input closes. All
arguments and results are bytes and numbers, so that Ray has no object of Holdfast to pickle.
"""

import contextlib
import os
import platform
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import msgspec

from holdfast import __version__, log_files
from holdfast.cluster.messages import ChildEnd, Place, ProcessJob
from holdfast.gateway.address import reachable_name

NODE_ADDRESS = "HOLDFAST_NODE_ADDRESS"
"""The environment variable with the address at which other nodes reach this node."""
END_SECONDS = 10.0
READ_SECONDS = 5.0
"""Seconds for reading the reports that a process sent before it ended."""
TAIL_LINES = 20
REPORT_SECONDS = 30.0
"""Seconds for which a call waits for new reports. After that, it returns an empty list."""


def this_place() -> bytes:
    """Returns on which node and in which process this code runs."""
    import ray

    context = ray.get_runtime_context()
    return msgspec.json.encode(
        Place(
            host=socket.getfqdn(),
            node=context.get_node_id(),
            pid=os.getpid(),
            python=platform.python_version(),
            ray=ray.__version__,
            holdfast=__version__,
            address=_node_address(),
            reachable=reachable_name(_node_address()),
        )
    )


def _node_address() -> str:
    import ray

    return str(ray.util.get_node_ip_address())


class ProcessHost:
    """The actor of one process. Its methods run in threads of Ray, several at once."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._log: Path | None = None
        self._reports: list[bytes] = []
        self._change = threading.Condition()
        self._ended = threading.Event()

    def place(self) -> bytes:
        return this_place()

    def start(self, body: bytes) -> int:
        """Starts the process, and returns its pid."""
        job = msgspec.json.decode(body, type=ProcessJob)
        environment = os.environ | job.variables | {NODE_ADDRESS: _node_address()}
        folder = log_files.logs_of(job.run, job.journal, environment=environment)
        self._log = log_files.new_log(folder, job.role)
        reading, writing = os.pipe()
        try:
            self._process = self._open(job, self._log, environment, writing)
        except BaseException:
            os.close(reading)
            raise
        finally:
            os.close(writing)
        reader = threading.Thread(target=self._read, args=(reading,), daemon=True)
        reader.start()
        threading.Thread(target=self._reap, args=(reader,), daemon=True).start()
        self.send(job.message.encode() + b"\n")
        return self._process.pid

    def _open(
        self, job: ProcessJob, path: Path, environment: dict[str, str], writing: int
    ) -> subprocess.Popen[bytes]:
        with path.open("ab") as log:
            return subprocess.Popen(  # noqa: S603 - this interpreter, with our own code
                [sys.executable, *job.arguments, str(writing)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=environment,
                pass_fds=(writing,),
                start_new_session=True,
            )

    def send(self, body: bytes) -> bool:
        """Sends a line to the process. Returns False if the process is gone."""
        assert self._process is not None, "it was started"
        assert self._process.stdin is not None, "it is a pipe"
        try:
            self._process.stdin.write(body)
            self._process.stdin.flush()
        except (BrokenPipeError, ValueError):
            return False
        return True

    def reports(self, seen: int) -> list[bytes]:
        """Returns the reports after the first `seen`. If there are none, waits for more. The list
        is empty if no report came in this time, or if the process has ended and all of its reports
        were seen."""
        with self._change:
            self._change.wait_for(
                lambda: len(self._reports) > seen or self._ended.is_set(), REPORT_SECONDS
            )
            return self._reports[seen:]

    def wait(self, seconds: float) -> bytes:
        """Returns how the process ended, or b"" if it still runs after `seconds`. Once the process
        has ended, all of its reports can be read."""
        if not self._ended.wait(seconds):
            return b""
        assert self._process is not None, "it has ended"
        assert self._log is not None, "it was started"
        code = self._process.returncode
        tail = log_files.tail(self._log, TAIL_LINES) if code else ""
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu = used.ru_utime + used.ru_stime + time.process_time()
        return msgspec.json.encode(ChildEnd(code, str(self._log), tail, cpu))

    def end(self) -> None:
        """Ends the process and the processes that it started."""
        if self._process is not None and not self._ended.is_set():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._ended.wait(END_SECONDS)

    def _read(self, reading: int) -> None:
        with os.fdopen(reading, "rb") as pipe:
            for report in pipe:
                with self._change:
                    self._reports.append(report)
                    self._change.notify_all()

    def _reap(self, reader: threading.Thread) -> None:
        assert self._process is not None, "it was started"
        self._process.wait()
        with contextlib.suppress(ProcessLookupError):
            # Kills the processes that it left in its session.
            os.killpg(self._process.pid, signal.SIGKILL)
        # The last report says why the process ended.
        reader.join(READ_SECONDS)
        self._ended.set()
        with self._change:
            self._change.notify_all()
