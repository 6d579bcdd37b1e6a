"""The options of `holdfast init`, and the kinds of projects that it writes.

A project is a text file in `cli/projects`. A line `=== NAME` stands before each file of the
project.
"""

import argparse
from pathlib import Path

PROJECTS = Path(__file__).parents[1] / "projects"
MODEL = "The small model of Holdfast only adds numbers, with a tool; --policy URL takes yours."
KINDS = {
    "agent": "an agent with a tool, its tasks, its score and a test",
    "game": "an environment that the model acts in",
    "evaluation": "an evaluation as a test of pytest, in two settings",
    "black-box": "an agent that is a program of its own",
    "training": "an agent that learns, with tasks that it is not trained on",
}


def add_init(init: argparse.ArgumentParser) -> None:
    kinds = "\n".join(f"  {kind:<12}{meaning}" for kind, meaning in KINDS.items())
    init.description = f"Writes a small project that runs as it is. Kinds:\n\n{kinds}\n\n{MODEL}"
    init.add_argument(
        "folder",
        metavar="DIR",
        help="write the project here; no file may have the same name",
    )
    init.add_argument(
        "--kind",
        choices=tuple(KINDS),
        default="agent",
        help="write this kind of project (default: agent)",
    )
    init.add_argument("--json", action="store_true", help="print JSON")
