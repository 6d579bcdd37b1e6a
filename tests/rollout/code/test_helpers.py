"""What only evaluations use is no part of a rollout in their file; what might be used is."""

import ast

import pytest
from msgspec import structs

from holdfast.records.run import RunSpec
from holdfast.records.sampling import Sampling
from holdfast.rollout.code.source import canonical, parse
from holdfast.rollout.processors.processor import fingerprinted

from .test_fingerprint import Project, project  # noqa: F401  # A fixture.

ROLLOUT = "async def solve(t): t.add(PROMPT)\nPROMPT = 'be brief'\n"
EVALUATION = "@evaluation_test(rollout_processor=solve)\ndef test_it(row): return helper(row)\n"


def code(text: str, root: str = "solve") -> bytes:
    return canonical(parse(text.encode(), root=root))


def counts(text: str, old: str = "= 1", new: str = "= 2") -> bool:
    """Whether it is another rollout with the one in place of the other."""
    assert old in text
    ast.parse(text)
    return code(text) != code(text.replace(old, new))


@pytest.mark.parametrize(
    "helper",
    [
        "def helper(row):\n    x = 1\n",
        "async def helper(row, much=5):\n    x = 1\n",
        "def helper(row): return inner(row)\ndef inner(row):\n    x = 1\n",
        "def helper(row): return LIMIT\nLIMIT = 1\n",
        "def helper(row): return LIMIT\nLIMIT: int = 1\n",
        "def helper(row): return WORDS\nLIMIT = 1\nWORDS = {'a': [LIMIT, -2]}\n",
        "def helper(row):\n    x = 1\n    return helper(row)\n",
    ],
)
def test_a_helper_of_evaluations_alone_does_not_count(helper: str) -> None:
    assert not counts(ROLLOUT + helper + EVALUATION)


def test_what_is_imported_for_a_helper_alone_does_not_count() -> None:
    text = f"import judging\n{ROLLOUT}def helper(row): return judging.score(row)\n{EVALUATION}"
    assert not counts(text, "judging", "grading")


HELPER = "def helper(row):\n    x = 1\n"


@pytest.mark.parametrize(
    "text",
    [
        f"async def solve(t): helper(t)\n{HELPER}{EVALUATION}",
        f"async def solve(t): other(t)\ndef other(t): helper(t)\n{HELPER}{EVALUATION}",
        f"{ROLLOUT}class Tools:\n    def use(self): helper(1)\n{HELPER}{EVALUATION}",
        f"{ROLLOUT}TOOLS = [helper]\nuse(TOOLS)\n{HELPER}{EVALUATION}",
        f"{ROLLOUT}__all__ = ['helper']\n{HELPER}{EVALUATION}",
        f"{ROLLOUT}NAMES = 'solve, helper'\nuse(NAMES)\n{HELPER}{EVALUATION}",
        f"import sys\nasync def solve(t): sys.modules[__name__]\n{HELPER}{EVALUATION}",
        f"async def solve(t): globals()[t.task.id]\n{HELPER}{EVALUATION}",
        f"import tools\nasync def solve(t): getattr(tools, t.task.id)\n{HELPER}{EVALUATION}",
        f"{ROLLOUT}@register\n{HELPER}{EVALUATION}",
        f"{ROLLOUT}def helper(row, start=register(5)):\n    x = 1\n{EVALUATION}",
        f"{ROLLOUT}{EVALUATION}helper = made(x = 1)\n",
        f"{ROLLOUT}if True:\n    helper = 1\n{EVALUATION}",
        f"{ROLLOUT}def other(row):\n    x = 1\n{EVALUATION}",
        f"{ROLLOUT}{HELPER}def test_plainly(): helper(1)\n{EVALUATION}",
        f"{ROLLOUT}{HELPER}{EVALUATION.replace('=solve', '=partial(solve, helper)')}",
        f"{ROLLOUT}{HELPER}{EVALUATION.replace('(row):', '(row, by=helper):')}",
    ],
)
def test_what_anything_else_may_use_counts(text: str) -> None:
    assert counts(text)


def test_the_code_that_the_file_is_read_for_counts_whoever_else_uses_it() -> None:
    text = "async def solve(t):\n    x = 1\n@evaluation_test()\ndef test_it(row): solve\n"
    assert counts(text)
    assert code(text, root="other") == code(text.replace("1", "2"), root="other")


def test_a_helper_that_an_imported_module_may_use_counts(project: Project) -> None:  # noqa: F811
    text = f"import §tools\n{ROLLOUT}{HELPER}{EVALUATION}"
    project.write(solve=text, tools="PROMPT = 1\n")
    candidate = project.unloaded("solve")
    assert not project.changed(candidate, solve=text.replace("= 1", "= 2"))
    project.write(tools="import §solve\n")
    assert project.changed(candidate, solve=text)


def test_a_run_that_was_recorded_when_helpers_counted_goes_on(
    project: Project,  # noqa: F811
) -> None:
    text = ROLLOUT + HELPER + EVALUATION
    project.write(solve=text)
    candidate = project.unloaded("solve")

    def spec() -> RunSpec:
        name, found = fingerprinted(candidate)
        return RunSpec("r", 1, "m", Sampling(), None, name, "", "", "", rollout_code=found)

    now = spec()
    assert now.rollout_code is not None
    before = structs.replace(
        now,
        rollout=now.rollout_code.helpers,
        rollout_code=structs.replace(now.rollout_code, helpers=""),
    )
    assert before.rollout != now.rollout
    assert before.differences(now) == []
    project.write(solve=text.replace("= 1", "= 2"))
    assert before.differences(spec()) != [], "it goes by what its version looked at"
    assert now.differences(spec()) == []
    project.write(solve=text.replace("brief", "verbose"))
    assert now.differences(spec()) != []
