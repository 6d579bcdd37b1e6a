"""`holdfast` as a user runs it: a child process with real signals."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from holdfast.testing import FakeEngine
from support.fork_server import Popen

HERE = Path(__file__).parent


def holdfast(
    *arguments: object, env: dict[str, str] | None = None, around: tuple[str, ...] = ()
) -> "subprocess.Popen[str]":
    """`around`: a command that runs it."""
    return Popen(
        [*around, sys.executable, "-m", "holdfast", *(str(word) for word in arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | (env or {}),
    )


def finished(process: "subprocess.Popen[str]", *, timeout: float = 200) -> tuple[int, str, str]:
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise
    return process.returncode, out, err


def let_go(engine: FakeEngine, process: "subprocess.Popen[str]") -> None:
    """Until it has ended, nothing that it asked for is held any more. What it asked for before
    may come to its hold only now."""
    engine.set_faults()
    while process.poll() is None:
        engine.release()
        time.sleep(0.05)


def write_tasks(path: Path, names: list[str]) -> Path:
    path.write_text("".join(json.dumps({"id": n, "prompt": f"do {n}"}) + "\n" for n in names))
    return path


def run_words(
    place: Path,
    engine,
    tasks: Path,
    *extra: object,
    rollout: str = "workload.py",
    journal: str = "",
):
    """The words of `holdfast run` for an experiment in `place`, or in a journal elsewhere."""
    return (
        "run", HERE / rollout, "--tasks", tasks, "--policy", engine.url, "--model", engine.model,
        "--journal", journal or place / "journal.db", "--run", "crash", "--seed", 7, "--quiet",
        *extra,
    )  # fmt: skip


def export_samples(place: Path, *, journal: str = "") -> bytes:
    out = place / "samples.jsonl"
    out.unlink(missing_ok=True)
    code, _, err = finished(
        holdfast("export", "crash", "--what", "samples", "--out", out,
                 "--journal", journal or place / "journal.db")
    )  # fmt: skip
    assert code == 0, err
    return out.read_bytes()
