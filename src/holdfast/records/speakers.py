"""Tells the policy from other speakers of a trajectory, such as a simulated user."""

from collections import Counter
from collections.abc import Collection

from holdfast.records.view import TrajectoryView


def other_speakers(view: TrajectoryView) -> set[str]:
    """Returns the paths of replies by other speakers than the policy, which leads the main
    conversation."""
    generations = view.history.generations
    main = [step for step in generations if "." not in step.path] or generations
    return {
        step.path
        for step in generations
        if step.model != main[0].model or (step.ids and not step.trainable)
    }


def spoken_elsewhere(view: TrajectoryView, others: Collection[str]) -> dict[str, str]:
    """Returns the texts of other speakers outside the main conversation, each with its place. A
    text that several of them said is left out."""
    generations = [
        step for step in view.history.generations if step.path in others and "." in step.path
    ]
    times = Counter(step.message.text for step in generations)
    return {
        step.message.text: f"[{step.path}] {step.model}"
        for step in generations
        if step.message.text and times[step.message.text] == 1
    }
