"""Two Harbor tasks, and a function that writes others."""

from pathlib import Path

from support.paths import SUPPORT

HARBOR_TASKS = SUPPORT / "harbor_tasks"
PLAIN = "[environment]\ndocker_image = 'busybox'\nnetwork_mode = 'no-network'\n"


def harbor_task_folder(parent: Path, config: str = PLAIN, test: str = "exit 0") -> Path:
    """Writes the folder of a task."""
    folder = parent / "task"
    (folder / "tests").mkdir(parents=True)
    (folder / "environment").mkdir()
    (folder / "task.toml").write_text(config)
    (folder / "instruction.md").write_text("Do it.")
    (folder / "tests" / "test.sh").write_text(f"#!/bin/sh\n{test}\n")
    return folder
