"""The options of `holdfast init`, and the kinds of projects that it writes.

A project is a text file in `cli/projects`. A line `=== NAME` stands before each file of the
project.
"""

import argparse
from pathlib import Path

PROJECTS = Path(__file__).parents[1] / "projects"
MODEL = "Holdfast's small model can only add numbers with a tool. --policy URL uses your model."
KINDS = {
    "agent": "an agent with a tool, its tasks, its score and a test",
    "game": "an environment that the model acts in",
    "evaluation": "an evaluation as a pytest test, with two settings",
    "black-box": "an agent that is a separate program",
    "training": "an agent that learns, with held-out tasks",
}


def add_init(init: argparse.ArgumentParser) -> None:
    kinds = "\n".join(f"  {kind:<12}{meaning}" for kind, meaning in KINDS.items())
    init.description = f"Writes a small project that runs as it is. Kinds:\n\n{kinds}\n\n{MODEL}"
    init.add_argument(
        "folder",
        metavar="DIR",
        help="write the project to this folder; no file is overwritten",
    )
    init.add_argument(
        "--kind",
        choices=tuple(KINDS),
        default="agent",
        help="write this kind of project (default: agent)",
    )
    init.add_argument("--json", action="store_true", help="print JSON")
