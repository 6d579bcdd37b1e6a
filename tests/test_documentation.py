"""What the documentation names exists."""

import ast
import os
import re
import subprocess
import sys
import textwrap
from importlib import import_module
from pathlib import Path

import pytest

import holdfast
from holdfast.records.exit_codes import Exit
from holdfast.records.failure import TREATMENT

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
GUARANTEES = (ROOT / "docs" / "guarantees.md").read_text()


def named_tests() -> list[tuple[str, str]]:
    """Each `file.py::test_name` of the page; a bare `::test_name` belongs to the file before it."""
    results, file = [], ""
    for path, test in re.findall(r"`([\w/]+\.py)?(?:::(test_\w+))?[^`]*`", GUARANTEES):
        file = path or file
        if path or test:
            results.append((file, test))
    return results


@pytest.mark.parametrize(("file", "test"), named_tests())
def test_every_proof_that_is_named_exists(file, test):
    source = (ROOT / "tests" / file).read_text()
    assert f"def {test}(" in source or not test


def test_every_invariant_has_a_proof():
    assert all(f"| I{number} |" in GUARANTEES for number in range(1, 10))


@pytest.mark.parametrize("page", PAGES)
def test_links_between_pages_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
        assert (page.parent / target).exists(), target


def test_the_exit_codes_of_the_documentation_are_those_of_the_command():
    page = (ROOT / "docs" / "runs.md").read_text()
    documented = {int(n) for row in re.findall(r"^\| ([\d, ]+) \|", page, re.MULTILINE)
                  for n in row.split(",")}  # fmt: skip
    assert documented == {code.value for code in Exit}


def test_every_cause_of_a_failure_is_in_the_table():
    table = (ROOT / "docs" / "failures.md").read_text()
    assert all(f"| {cause.value} |" in table for cause in TREATMENT)


def test_the_public_names_are_these():
    assert set(holdfast.__all__) == {
        "EnginePolicy", "Contract", "DeliveryTimeout", "EnvironmentBroken", "GroupPolicy",
        "HoldfastError", "JournalError", "PolicyError", "RunChanged", "RunHeld",
        "Message", "Reply", "Rollout", "RolloutConfig", "RolloutProcessor", "Sample", "Sampling",
        "Score", "ScoringPolicy", "Settings", "SingleTurnRolloutProcessor", "Status", "Task",
        "Tool", "ToolCall", "ToolSaysNo", "TrainingRolloutProcessor", "TrajectoryView",
        "Speaker", "group_scorer", "open_journal", "renderer_for", "run", "tool", "Role",
        "samples", "read_tasks", "run_sync", "RunResult", "open_policy", "fork",
        "trajectories", "system", "user", "assistant",
        "AgentRolloutProcessor", "DialogueRolloutProcessor", "EnvironmentRolloutProcessor",
        "Environment", "Episode", "Limits", "Observation", "Recovery",
        "OnDivergence", "Shortfall", "UsageError",
        "BlackBoxRolloutProcessor", "ExternalRolloutProcessor", "FreshWorld",
        "RemoteRolloutProcessor", "WorkspaceWorld",
        "train", "TrainingSettings", "Objective", "Judge", "Prices", "ProgressSnapshot",
        "Delivery", "DeliveredBatch", "WorldEnvironment", "WorldSpec",
    }  # fmt: skip
    assert all(getattr(holdfast, name) is not None for name in holdfast.__all__)


@pytest.mark.parametrize("page", PAGES)
def test_no_page_has_a_hole_to_be_filled(page):
    assert not re.search(r"@[A-Z]+@|TODO|FIXME", page.read_text())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_python_in_the_pages_is_python(page):
    for block in re.findall(
        r"^( *)```python\n(.*?)^ *```$", page.read_text(), re.DOTALL | re.MULTILINE
    ):
        ast.parse(textwrap.dedent(block[1]))


@pytest.mark.parametrize(
    "module",
    [
        "holdfast",
        "holdfast.environments",
        "holdfast.evaluation",
        "holdfast.scorers",
        "holdfast.testing",
    ],
)
def test_every_public_name_is_in_the_reference(module):
    pages = "".join(page.read_text() for page in (DOCS / "reference").glob("*.md"))
    named = set(re.findall(r"^::: (\S+)$", pages, re.MULTILINE))
    assert {f"{module}.{name}" for name in import_module(module).__all__} <= named


def test_every_page_is_in_the_index_and_in_the_site():
    pages = {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")} - {"README.md"}
    index, site = (DOCS / "README.md").read_text(), (ROOT / "mkdocs.yml").read_text()
    assert pages <= set(re.findall(r"\]\(([\w/-]+\.md)", index))
    assert pages <= set(re.findall(r"[\w/-]+\.md", site))


def test_the_site_is_built_without_a_broken_link(tmp_path):
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", tmp_path / "site"],
        cwd=ROOT, capture_output=True, text=True, check=False,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
    )  # fmt: skip
    assert built.returncode == 0, built.stderr
    page = (tmp_path / "site" / "reference" / "rollouts" / "index.html").read_text()
    assert "Samples the assistant" in page, "it is made from the docstrings"
    linked = {
        (page.parent / link).resolve()
        for page in (tmp_path / "site").rglob("index.html")
        for link in re.findall(r'<a [^>]*href="([^":#?]+)[\"#]', page.read_text())
    }
    assert tmp_path / "site" / "project" in linked, "the README is a page, too"
    assert tmp_path / "site" / "examples" / "frozen_lake" in linked
    assert not [link for link in linked if not link.exists()]
