"""What it costs a run to be looked at: by 20 browsers, and by a collector of OpenTelemetry.

The CPU is that of the driver's own process, because pages and spans are made by other processes.
The browsers follow the page's events and load it again at each of them, as its script does. The
memory of the page's process is read during each watched run.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from result import Result

from holdfast.testing import FakeEngine

BROWSERS, ROUNDS = 20, 3
TASKS, SAMPLES = 150, 4
ROLLOUT = """
import asyncio
import holdfast


async def solve(t: holdfast.Rollout) -> float:
    t.add(*t.task.messages)
    for _ in range(4):
        await t.generate()
        await asyncio.sleep(0.5)
        t.add("and then?")
    return 1.0
"""
DRIVER = """
import resource, sys
from holdfast.cli.main import main
code = main(sys.argv[1:])
used = resource.getrusage(resource.RUSAGE_SELF)
print("CPU", used.ru_utime + used.ru_stime)
sys.exit(code)
"""


def measure() -> list[Result]:
    plain, watched, traced = [], [], []
    grown: list[float] = []
    spans = 0
    with FakeEngine(replies=["a reply of some words"]) as engine, _collector() as (url, counts):
        for _ in range(ROUNDS):
            plain.append(_run(engine.url))
            watched.append(_run(engine.url, memory=grown))
            traced.append(_run(engine.url, "--otel", url))
        spans = sum(counts)
    bare = statistics.median(plain)
    detail = f"{bare:.2f} s without, medians of {ROUNDS} in turns"
    return [
        Result(
            f"looking: CPU of a driver beside {BROWSERS} browsers / alone",
            statistics.median(watched) / bare, "×", "≤ 1.05", detail,
        ),
        Result(
            "looking: CPU of a driver with --otel / without",
            statistics.median(traced) / bare, "×", "≤ 1.2",
            f"{detail}; the collector got {spans:,} bytes",
        ),
        Result(
            "looking: memory of the page's process, end / middle of a run",
            statistics.median(grown), "×", "≤ 1.2",
        ),
    ]  # fmt: skip


def _run(engine: str, *more: str, memory: list[float] | None = None) -> float:
    """Returns the CPU seconds of the driver of one run. With `memory`, it is watched."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        (place / "solve.py").write_text(ROLLOUT)
        lines = [f'{{"id": "q{n}", "prompt": "question {n}"}}\n' for n in range(TASKS)]
        (place / "tasks.jsonl").write_text("".join(lines))
        arguments = ["run", "solve.py", "--tasks", "tasks.jsonl", "--samples", str(SAMPLES)]
        options = ["--run", "live", "--quiet", "--policy", engine, "--concurrency", "48", *more]
        driver = subprocess.Popen(
            [sys.executable, "-c", DRIVER, *arguments, *options],
            cwd=place, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        while not (place / "holdfast.db").exists():
            time.sleep(0.05)
        if memory is None:
            output, _ = driver.communicate()
        else:
            with _watching(place) as sizes:
                output, _ = driver.communicate()
            memory.append(sizes[-1] / sizes[len(sizes) // 2])
        return float(output.rpartition("CPU")[2])


@contextmanager
def _watching(place: Path) -> Iterator[list[int]]:
    """Opens the page of the run in so many browsers. Yields the memory of the server's process,
    which grows by a measurement each second."""
    server = subprocess.Popen(
        [sys.executable, "-m", "holdfast", "view", "--port", "0"],
        cwd=place, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert server.stderr is not None, "it is a pipe"
    url = server.stderr.readline().removeprefix("holdfast: ").strip()
    over = threading.Event()
    sizes: list[int] = []
    threads = [threading.Thread(target=_browse, args=(url, over)) for _ in range(BROWSERS)]
    threads.append(threading.Thread(target=_measure, args=(server.pid, over, sizes)))
    for thread in threads:
        thread.start()
    try:
        yield sizes
    finally:
        over.set()
        server.terminate()
        server.communicate()
        for thread in threads:
            thread.join()


def _browse(url: str, over: threading.Event) -> None:
    events = None
    while not over.is_set():
        try:
            if events is None:
                events = urllib.request.urlopen(f"{url}/events?topic=%2Frun%2Flive", timeout=60)
            if events.readline().startswith(b"data:"):
                urllib.request.urlopen(f"{url}/run/live", timeout=60).read()
        except OSError:  # The run is not there yet, or the server has ended.
            events = None
            over.wait(0.2)


def _measure(pid: int, over: threading.Event, sizes: list[int]) -> None:
    page = os.sysconf("SC_PAGESIZE")
    while not over.wait(1.0):
        sizes.append(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * page)


@contextmanager
def _collector() -> Iterator[tuple[str, list[int]]]:
    """Yields a collector's address, and the sizes of what it got."""
    counts: list[int] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            counts.append(len(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", counts
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
