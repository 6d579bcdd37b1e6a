"""Peers from PyPI, each in an environment of its own under `.peers/`, installed once."""

import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parent.parent / ".peers"


def why_missing(folder: Path, *packages: str) -> str | None:
    """Installs them into the environment, if they are not; why that is not possible."""
    installed, wanted = folder / "installed", " ".join(packages)
    if installed.exists() and installed.read_text() == wanted:
        return None
    steps = (
        [sys.executable, "-m", "venv", str(folder)],
        [str(folder / "bin/python"), "-m", "pip", "install", "--quiet", *packages],
    )
    for step in steps:
        done = subprocess.run(step, capture_output=True, text=True, check=False)
        if done.returncode:
            said = done.stderr.strip().splitlines() or ["it does not say why"]
            return f"it does not install: {said[-1]}"
    installed.write_text(wanted)
    return None
