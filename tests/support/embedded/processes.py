"""Processes of embedded engines."""

import time
from pathlib import Path

from support.embedded.client import SECONDS


def gone(pid: int) -> bool:
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
        except FileNotFoundError:
            return True
        if state == "Z":
            return True
        time.sleep(0.02)
    return False
