"""The numbers of steps, and their picture."""

import xml.etree.ElementTree as ElementTree

import pytest

from holdfast.records.errors import UsageError
from holdfast.training.run.curve import draw
from holdfast.training.run.metrics import (
    TrainingMetrics,
    check_tracker,
    open_tracker,
    read,
    step_line,
)

NUMBERS = {
    "reward": 0.49,
    "loss": -0.00012,
    "groups_informative": 13,
    "groups_drawn": 16,
    "trajectories": 128,
    "trajectories_failed": 0,
    "skipped_updates": 0,
    "seconds": 7.2,
}


class Seen:
    def __init__(self):
        self.logged, self.closed = [], False

    def log(self, numbers, step):
        self.logged.append((step, dict(numbers)))

    def close(self):
        self.closed = True


def test_what_was_written_of_a_step_belongs_together_and_goes_to_trackers(tmp_path):
    seen = Seen()
    metrics = TrainingMetrics(tmp_path, trackers=[seen])
    metrics.write(1, {"reward": 0.5})
    metrics.write(1, {"eval_reward": 0.75})
    assert metrics.lines() == {1: {"reward": 0.5, "eval_reward": 0.75}}
    assert seen.logged == [(1, {"reward": 0.5}), (1, {"eval_reward": 0.75})]
    metrics.close()
    assert seen.closed


def test_a_rewind_drops_what_came_later_and_a_line_that_a_kill_cut(tmp_path):
    metrics = TrainingMetrics(tmp_path)
    for step in (0, 1, 2, 3):
        metrics.write(step, {"reward": step / 10})
    metrics.write(1, {"eval_reward": 1.0})
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('[1]\n{"reward": 1}\n{"step": 4, "rew')
    metrics.rewind(2)
    assert read(tmp_path / "metrics.jsonl") == [
        {"step": 0, "reward": 0.0},
        {"step": 1, "reward": 0.1, "eval_reward": 1.0},
        {"step": 2, "reward": 0.2},
    ]
    metrics.write(3, {"reward": 0.9})
    assert metrics.lines()[3] == {"reward": 0.9}
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.jsonl"]


def test_the_line_of_a_step():
    assert step_line(1, NUMBERS) == (
        "step 1     reward 0.490  loss -0.000  kl 0.000  kept 13/16 groups  128 trajectories  7 s"
    )
    line = step_line(12, NUMBERS | {"trajectories_failed": 3, "skipped_updates": 1})
    assert "3 failed  gradients not finite: skipped" in line


def test_trackers_that_are_unknown_or_not_installed_are_named(monkeypatch, tmp_path):
    with pytest.raises(UsageError, match="no tracker is called 'mlflow'"):
        check_tracker("mlflow")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UsageError, match="pip install wandb"):
        check_tracker("wandb")


def test_tensorboard_gets_the_numbers(tmp_path):
    pytest.importorskip("tensorboard")
    tracker = open_tracker("tensorboard", run="first", folder=tmp_path)
    tracker.log({"reward": 0.5}, 1)
    tracker.close()
    assert list((tmp_path / "tensorboard").iterdir())


def test_a_curve_is_a_picture_with_a_line_for_each_name():
    svg = draw(
        {"undisturbed": [(1, 0.4), (2, 0.8)], "killed <20 times>": [(1, 0.4), (2, 0.8)]},
        title="first: mean reward",
        axis="step",
    )
    root = ElementTree.fromstring(svg)
    space = "{http://www.w3.org/2000/svg}"
    lines = [p for p in root.iter(f"{space}path") if p.get("fill") == "none"]
    assert len(lines) == 2
    assert lines[0].get("d") == lines[1].get("d")
    assert (lines[0].get("stroke-dasharray"), bool(lines[1].get("stroke-dasharray"))) == (
        None,
        True,
    )
    assert "killed <20 times>" in [text.text for text in root.iter(f"{space}text")]


@pytest.mark.parametrize("curves", [{}, {"training": []}, {"training": [(1, float(1))]}])
def test_a_curve_of_little_is_a_picture_too(curves):
    ElementTree.fromstring(draw(curves, title="t", axis="step"))
