"""Puzzles of reasoning-gym: generated when they are read, scored by the library. Learns, too.

    pip install reasoning-gym
    holdfast run examples/puzzles.py --tasks examples/puzzles.py --samples 4
    holdfast train examples/puzzles.py --tasks examples/puzzles.py --run puzzles \
        --out runs/puzzles --steps 30 --groups 8 --samples 8 --learning-rate 6e-4 --seed 1

The model may use the calculator of examples/calculator.py. docs/puzzles-curve.svg is this training.
"""

from collections.abc import Iterator

from calculator import solve as rollout
from reasoning_gym import create_dataset, get_score_answer_fn

import holdfast
from holdfast.scorers.numeric import last_number

__all__ = ["rollout", "score", "tasks"]
KIND, SIZE = "chain_sum", 400


def tasks() -> Iterator[dict[str, object]]:
    puzzles = create_dataset(KIND, size=SIZE, seed=1, max_terms=3, max_digits=2)
    for number, puzzle in enumerate(puzzles, 1):
        # The whole puzzle is the ground truth: the model sees nothing but its question.
        yield {"id": f"{KIND}-{number}", "prompt": puzzle["question"], "ground_truth": puzzle}


def score(trajectory: holdfast.TrajectoryView) -> float:
    answer = last_number(trajectory.reply)
    return float(get_score_answer_fn(KIND)(answer, trajectory.task.ground_truth))
