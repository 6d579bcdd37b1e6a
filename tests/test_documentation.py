"""What the documentation names exists."""

import re
from pathlib import Path

import pytest

import holdfast
from holdfast.cli.exit import Exit
from holdfast.records.failure import TREATMENT

ROOT = Path(__file__).parent.parent
GUARANTEES = (ROOT / "docs" / "guarantees.md").read_text()


def named_tests() -> list[tuple[str, str]]:
    """Each `file.py::test_name` of the page; a bare `::test_name` belongs to the file before it."""
    found, file = [], ""
    for path, test in re.findall(r"`([\w/]+\.py)?(?:::(test_\w+))?[^`]*`", GUARANTEES):
        file = path or file
        if path or test:
            found.append((file, test))
    return found


@pytest.mark.parametrize(("file", "test"), named_tests())
def test_every_proof_that_is_named_exists(file, test):
    source = (ROOT / "tests" / file).read_text()
    assert f"def {test}(" in source or not test


def test_every_invariant_has_a_proof():
    assert all(f"| I{number} |" in GUARANTEES for number in range(1, 10))


@pytest.mark.parametrize("page", [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))])
def test_links_between_pages_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
        assert (page.parent / target).exists(), target


def test_the_exit_codes_of_the_documentation_are_those_of_the_command():
    quickstart = (ROOT / "docs" / "quickstart.md").read_text()
    documented = {int(n) for row in re.findall(r"^\| ([\d, ]+) \|", quickstart, re.MULTILINE)
                  for n in row.split(",")}  # fmt: skip
    assert documented == {code.value for code in Exit}


def test_every_cause_of_a_failure_is_in_the_table():
    table = (ROOT / "docs" / "failures.md").read_text()
    assert all(f"| {cause.value} |" in table for cause in TREATMENT)


def test_the_public_names_are_these():
    assert set(holdfast.__all__) == {
        "EnginePolicy", "Contract", "EnvironmentBroken", "GroupPolicy", "HoldfastError",
        "Message", "Reply", "Rollout", "RolloutConfig", "RolloutProcessor", "Sample", "Sampling",
        "Score", "ScoringPolicy", "Settings", "SingleTurnRolloutProcessor", "Status", "Task",
        "Tool", "ToolCall", "ToolSaysNo", "TrainingRolloutProcessor", "TrajectoryView", "Voice",
        "group_scorer", "open_journal", "renderer_for", "run", "tool", "Role", "samples",
        "trajectories", "system", "user", "assistant",
        "AgentRolloutProcessor", "DialogueRolloutProcessor", "EnvironmentRolloutProcessor",
        "Environment", "Episode", "Limits", "Observation", "Recovery",
        "OnDivergence", "Shortfall", "UsageError",
        "BlackBoxRolloutProcessor", "ExternalRolloutProcessor", "FreshWorld",
        "RemoteRolloutProcessor", "WorkspaceWorld",
    }  # fmt: skip
    assert all(getattr(holdfast, name) is not None for name in holdfast.__all__)


@pytest.mark.parametrize("page", [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))])
def test_no_page_has_a_hole_to_be_filled(page):
    assert not re.search(r"@[A-Z]+@|TODO|FIXME", page.read_text())
