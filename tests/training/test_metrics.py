"""The numbers of steps, and their picture."""

import xml.etree.ElementTree as ElementTree

import pytest

from holdfast.training.run.curve import draw
from holdfast.training.run.metrics import (
    TrainingMetrics,
    is_flat,
    is_skipped,
    read,
    standard_error,
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
    "reward_error": 0.0441,
    "gap_mean": 1.23e-5,
    "clipped_positive": 0.004,
    "clipped_negative": 0.01,
    "sampled_tokens": 8640,
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
    metrics = TrainingMetrics(tmp_path)
    metrics.follow([seen])
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
        "step 1     reward 0.490 ± 0.044  gap 1e-05  clipped 1.4 %  13/16 groups  1,200 tokens/s"
        "  7 s"
    )
    more = {"trajectories_failed": 3, "skipped_updates": 1, "kl": 0.0213}
    line = step_line(12, NUMBERS | more | {"scorer/format": 0.75, "scorer/length": 211.0})
    assert line == (
        "step 12    reward 0.490 ± 0.044  gap 1e-05  clipped 1.4 %  kl 0.021  13/16 groups"
        "  3 failed\n"
        "           gradients not finite: skipped  1,200 tokens/s  7 s  format 0.75  length 211"
    )


@pytest.mark.parametrize("metrics", [0, 1, 40])
def test_no_line_of_a_step_is_wider_than_a_terminal(metrics):
    more = {f"scorer/metric number {n}": 1e6 * n for n in range(metrics)}
    lines = step_line(12345, NUMBERS | more | {"sampled_tokens": 10**9}).splitlines()
    assert max(map(len, lines)) <= 100
    assert sum("metric number" in part for line in lines for part in line.split("  ")) == metrics


def test_a_step_whose_tokens_other_weights_have_sampled_has_no_gap():
    numbers = {name: value for name, value in NUMBERS.items() if name != "gap_mean"}
    assert "gap" not in step_line(1, numbers)


def test_the_error_of_a_mean_is_that_of_its_groups():
    assert standard_error([[1.0, 0.0], []]) is None
    alike, apart = [[1.0, 1.0], [0.0, 0.0]], [[1.0, 0.0], [1.0, 0.0]]
    assert standard_error(alike) == pytest.approx(0.5)
    assert standard_error(apart) == 0.0
    singles = [[1.0], [0.0], [1.0], [1.0]]
    assert standard_error(singles) == pytest.approx(0.25)


def test_a_tracker_that_fails_is_reported_and_left_out(tmp_path):
    class Broken(Seen):
        def log(self, numbers, step):
            raise ConnectionError("no network")

    message, seen = [], Seen()
    metrics = TrainingMetrics(tmp_path, report=message.append)
    metrics.follow([Broken(), seen])
    metrics.write(1, {"reward": 0.5})
    metrics.write(2, {"reward": 0.6})
    metrics.close()
    (line,) = message
    assert "the tracker Broken failed, and training goes on without it" in line
    assert "no network" in line
    assert [step for step, _ in seen.logged] == [1, 2]
    assert list(metrics.lines()) == [1, 2]


def test_a_tracker_has_the_numbers_before_the_file(tmp_path):
    """What is in the file after a kill is not evaluated again, so nothing would log it."""
    file = tmp_path / "metrics.jsonl"

    class Looking(Seen):
        def log(self, numbers, step):
            assert not file.exists()
            super().log(numbers, step)

    looking = Looking()
    metrics = TrainingMetrics(tmp_path)
    metrics.follow([looking])
    metrics.write(0, {"eval_reward": 0.5})
    assert looking.logged
    assert file.exists()


def test_a_curve_is_a_picture_with_a_line_for_each_name():
    svg = draw(
        {"undisturbed": [(1, 0.4), (2, 0.8)], "killed <20 times>": [(1, 0.4), (2, 0.8)]},
        title="first: mean reward",
        axis="step",
        marks=[1.5],
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
    assert [p.get("stroke") for p in root.iter(f"{space}path")].count("#fca5a5") == 1
    assert "killed <20 times>" in [text.text for text in root.iter(f"{space}text")]


@pytest.mark.parametrize("curves", [{}, {"training": []}, {"training": [(1, float(1))]}])
def test_a_curve_of_little_is_a_picture_too(curves):
    ElementTree.fromstring(draw(curves, title="t", axis="step"))


def test_a_step_that_trained_nothing_is_told_from_one_that_did():
    lines = [
        {"updates": 2, "skipped_updates": 2},
        {"updates": 2, "skipped_updates": 1},
        {"updates": 0, "skipped_updates": 0},
        {"eval_reward": 0.5},
    ]
    assert [is_skipped(line) for line in lines] == [True, False, False, False]
    lines = [
        {"groups_informative": 0, "gradient_norm": 0.0},
        {"groups_informative": 0, "gradient_norm": 1e-13},
        {"groups_informative": 0, "gradient_norm": 0.1},
        {"groups_informative": 0, "gradient_norm": float("nan")},
        {"groups_informative": 1, "gradient_norm": 0.0},
        {"eval_reward": 0.5},
    ]
    assert [is_flat(line) for line in lines] == [True, True, False, False, False, False]
