"""The files of a training, found by the command that its run records."""

import json
from types import SimpleNamespace

from holdfast.records.run import RecordedCommand
from holdfast.training.run.recorded import metrics_of


def test_a_gap_that_was_requested_is_the_gap_of_its_step(tmp_path):
    lines = [{"step": 1, "gap_mean": 0.1}, {"step": 2, "asked_gap_mean": 0.2}, {"step": 2, "kl": 0}]
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "metrics.jsonl").write_text("".join(f"{json.dumps(x)}\n" for x in lines))
    command = RecordedCommand(("train", "--out", "out"), str(tmp_path))
    run = SimpleNamespace(spec=SimpleNamespace(command=command, name="r"))
    assert metrics_of(run) == {1: {"gap_mean": 0.1}, 2: {"gap_mean": 0.2, "kl": 0}}
