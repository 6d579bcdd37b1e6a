"""Weights & Biases, trackio and TensorBoard: every step once, in a process that is killed, too.

Each runs where it is installed; none of them is a dependency.
"""

import importlib.util
import os
import signal
import sqlite3
import struct
import subprocess
import sys

import pytest
from msgspec import structs

from holdfast.records.errors import UsageError
from holdfast.records.run import Run
from holdfast.training.run import trackers
from holdfast.training.run.trackers import check_tracker, open_tracker, tracked_name
from support.records import spec

RUN = Run(1, spec("first"), (), 12.5)
PROCESS = """
import os, sys, time
from pathlib import Path
from holdfast.training.run.metrics import TrainingMetrics
from holdfast.training.run.trackers import open_tracker
from holdfast.records.run import Run
from support.records import spec
RUN = Run(1, spec("first"), (), 12.5)
name, folder, restored, last = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
metrics = TrainingMetrics(folder, report=print)
metrics.rewind(restored)
metrics.follow([open_tracker(name, run=RUN, folder=folder, lines=metrics.lines())])
if "eval_reward" not in metrics.lines().get(restored, {}):
    metrics.write(restored, {"eval_reward": restored / 100})
for step in range(restored + 1, last + 1):
    metrics.write(step, {"reward": step / 10, "loss": -step / 10})
if "KILL" in os.environ:
    time.sleep(float(os.environ["KILL"]))
    os.kill(os.getpid(), 9)
metrics.close()
"""
SEEN = {0: 0.0, 3: 0.03}, {step: step / 10 for step in range(1, 7)}
"""Of evaluations, and of steps."""


def log(name, folder, restored, last, **env):
    """Steps after `restored`, up to `last`, in a process of their own."""
    path = os.pathsep.join(sys.path)
    done = subprocess.run(
        [sys.executable, "-c", PROCESS, name, str(folder), str(restored), str(last)],
        env={**os.environ, "PYTHONPATH": path, "WANDB_MODE": "offline", "WANDB_SILENT": "true",
             "TRACKIO_DIR": str(folder / "trackio"), **env},
        capture_output=True,
        text=True,
    )  # fmt: skip
    assert done.returncode == (-signal.SIGKILL if "KILL" in env else 0), done.stderr
    assert done.stdout == ""


def kill_and_resume(name, folder):
    """Killed after step 5, of which the newest checkpoint holds 3, without its evaluation."""
    log(name, folder, 0, 5, KILL="2")
    log(name, folder, 3, 6)


def test_trackers_that_are_unknown_or_not_installed_are_named(monkeypatch):
    with pytest.raises(UsageError, match="no tracker is called 'mlflow'"):
        check_tracker("mlflow")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UsageError, match="pip install wandb"):
        check_tracker("wandb")


def test_one_that_cannot_be_opened_is_said_in_one_line(monkeypatch, tmp_path):
    def refuse(name):
        raise ConnectionError("No API key configured.\nUse `wandb login`")

    monkeypatch.setattr(trackers, "import_module", refuse)
    with pytest.raises(UsageError, match=r"wandb cannot be opened: No API key configured\.$"):
        open_tracker("wandb", run=RUN, folder=tmp_path, lines={})


def test_a_training_keeps_its_name_and_shares_it_with_no_other():
    assert tracked_name(RUN) == tracked_name(structs.replace(RUN, id=7))
    assert tracked_name(RUN) != tracked_name(structs.replace(RUN, created=13.0))
    odd = structs.replace(RUN, spec=spec("a#b?c%d:e " + "x" * 190))
    assert set(tracked_name(odd)) <= set("abcdefghijklmnopqrstuvwxyz0123456789-")
    assert len(tracked_name(odd)) < 100


# --- what there is to be read afterwards


@pytest.mark.skipif(not importlib.util.find_spec("tensorboard"), reason="tensorboard")
def test_tensorboard_has_every_step_once(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    kill_and_resume("tensorboard", tmp_path)
    event_accumulator = EventAccumulator(str(tmp_path / "tensorboard"))
    event_accumulator.Reload()
    read = {
        name: [(event.step, round(event.value, 6)) for event in event_accumulator.Scalars(name)]
        for name in ("eval_reward", "reward")
    }
    assert read == {"eval_reward": list(SEEN[0].items()), "reward": list(SEEN[1].items())}


@pytest.mark.skipif(not importlib.util.find_spec("trackio"), reason="trackio")
def test_trackio_has_every_step_once_in_one_run(tmp_path):
    import json

    kill_and_resume("trackio", tmp_path)
    (file,) = (tmp_path / "trackio").glob("*.db")
    with sqlite3.connect(file) as database:
        rows = database.execute("SELECT run_name, step, metrics FROM metrics").fetchall()
    assert {name for name, _, _ in rows} == {tracked_name(RUN)}
    for kind, expected in zip(("eval_reward", "reward"), SEEN, strict=True):
        read = [(step, json.loads(m)[kind]) for _, step, m in rows if kind in json.loads(m)]
        assert sorted(read) == list(expected.items())


@pytest.mark.skipif(not importlib.util.find_spec("wandb"), reason="wandb")
def test_the_newest_folder_of_wandb_offline_has_every_step_once(tmp_path):
    kill_and_resume("wandb", tmp_path)
    newest = max((tmp_path / "wandb").glob("offline-run-*"))
    (file,) = newest.glob("*.wandb")
    assert tracked_name(RUN) in file.name
    rows = _history(file.read_bytes())
    for kind, expected in zip(("eval_reward", "reward"), SEEN, strict=True):
        read = [(row["step"], row[kind]) for row in rows if kind in row]
        assert read == list(expected.items())


def _history(data):
    """The rows of a file of wandb: records of protobuf, in blocks as LevelDB's log has them."""
    import json

    from wandb.proto.wandb_internal_pb2 import Record

    rows, whole, at, block = [], b"", 7, 32768
    while at + 7 <= len(data):
        if block - at % block < 7:
            at += block - at % block
            continue
        _, size, kind = struct.unpack("<IHB", data[at : at + 7])
        whole += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # A whole record, or the last part of one.
            record = Record.FromString(whole)
            whole = b""
            if record.HasField("history"):
                items = record.history.item
                rows.append({(i.key or i.nested_key[0]): json.loads(i.value_json) for i in items})
    return rows
