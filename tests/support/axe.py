"""axe-core, which finds what keeps people with a screen reader from using a page."""

import os
from pathlib import Path

from playwright.sync_api import Page

AXE = os.environ.get("HOLDFAST_AXE", "")
"""The path of npm's axe-core (`axe.min.js`). Without it, nothing is checked."""


def check_accessible(page: Page) -> None:
    """The page as it is now has no serious finding."""
    if not AXE:
        return
    page.evaluate(Path(AXE).read_text())
    report = page.evaluate("axe.run({resultTypes: ['violations']})")
    serious = [
        (rule["id"], rule["nodes"][0]["html"][:200])
        for rule in report["violations"]
        if rule["impact"] in ("serious", "critical")
    ]
    assert serious == []
