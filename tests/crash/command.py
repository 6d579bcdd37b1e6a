"""`holdfast` as a user runs it: a child process with real signals."""

import json
import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent


def holdfast(*words: object, env: dict[str, str] | None = None) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "holdfast", *(str(word) for word in words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | (env or {}),
    )


def finished(process: "subprocess.Popen[str]", *, timeout: float = 120) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=timeout)
    return process.returncode, out, err


def write_tasks(path: Path, names: list[str]) -> Path:
    path.write_text("".join(json.dumps({"id": n, "prompt": f"do {n}"}) + "\n" for n in names))
    return path


def run_words(place: Path, engine, tasks: Path, *extra: object, rollout: str = "workload.py"):
    """The words of `holdfast run` for an experiment in `place`."""
    return (
        "run", HERE / rollout, "--tasks", tasks, "--policy", engine.url, "--model", engine.model,
        "--journal", place / "journal.db", "--run", "crash", "--seed", 7, "--quiet", *extra,
    )  # fmt: skip


def export_samples(place: Path) -> bytes:
    out = place / "samples.jsonl"
    code, _, err = finished(
        holdfast("export", "crash", "--what", "samples", "--out", out,
                 "--journal", place / "journal.db")
    )  # fmt: skip
    assert code == 0, err
    return out.read_bytes()
