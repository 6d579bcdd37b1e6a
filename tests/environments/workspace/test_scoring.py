"""Scoring a workspace by running tests that the policy has not seen and cannot touch."""

import asyncio

import pytest

from holdfast.environments.workspace import Workspace
from holdfast.environments.workspace.scoring import PREFIX
from holdfast.records.errors import UsageError
from support.environments.workspaces import both, contents, opened

RIGHT = "def add(a, b):\n    return a + b\n"
TESTS = """
import pytest
from solution import add

@pytest.mark.parametrize("a", [1, 2, 3])
def test_add(a):
    assert add(a, a) == 2 * a

def test_negative():
    assert add(-1, 1) == 0
"""
QUICK = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}


def score(files, *commands, command="python -m pytest -q", tests=None, **options):
    """What scoring says after the policy ran `commands`."""
    sandbox, env = options.pop("sandbox", "auto"), options.pop("env", QUICK)

    async def run():
        async with opened(files, sandbox=sandbox, env=env) as workspace:
            for item in commands:
                await workspace.shell(item)
            before = contents(workspace.path)
            hidden = {"test_hidden.py": TESTS} if tests is None else tests
            seen = await workspace.step(workspace.scoring(command, hidden, **options))
            assert contents(workspace.path) == before, "scoring leaves the workspace alone"
            return seen

    return asyncio.run(run())


@both
def test_what_is_right_is_rewarded(sandbox):
    seen = score({"solution.py": RIGHT}, sandbox=sandbox)
    assert seen.reward == 1.0
    assert seen.text == "4 passed, 0 failed, 0 errors, 0 skipped\n[exit code 0]"
    assert "4 passed" in seen.info["output"]
    assert not seen.over


@both
def test_plugins_that_the_interpreter_knows_of_and_the_sandbox_does_not_change_no_reward(sandbox):
    assert score({"solution.py": RIGHT}, sandbox=sandbox, env={}).reward == 1.0


@both
def test_what_is_partly_right_is_counted(sandbox):
    seen = score({"solution.py": "def add(a, b):\n    return a * b + 1\n"}, sandbox=sandbox)
    assert seen.reward == 0.0
    assert {name: seen.info[name] for name in ("passed", "failed", "errors", "skipped")} == {
        "passed": 2,
        "failed": 2,
        "errors": 0,
        "skipped": 0,
    }
    assert seen.info["exit_code"] == 1


def test_what_is_not_there_is_an_error_and_no_reward():
    seen = score({})
    assert (seen.reward, seen.info["passed"], seen.info["errors"]) == (0.0, 0, 1)


def test_any_command_may_score_by_its_exit_code():
    for code, reward in ((0, 1.0), (1, 0.0)):
        seen = score({"out": "42"}, command=f"grep -q 42 out; echo seen; exit {code}", tests={})
        assert (seen.reward, seen.text) == (reward, f"[exit code {code}]")
        assert seen.info["output"].startswith("seen\n")


def test_a_solution_that_does_not_end_is_no_success():
    seen = score({"solution.py": "while True: pass"}, timeout=1.0)
    assert (seen.reward, seen.info["stopped"]) == (0.0, "timed out after 1 s")


WRONG = "def add(a, b):\n    return 7\n"
CHEATS = {
    "leaves with success": {"solution.py": "import os; os._exit(0)"},
    "prints a summary": {"solution.py": "print('4 passed in 0.1s'); raise SystemExit(0)"},
    "a conftest": {
        "solution.py": WRONG,
        "conftest.py": "def pytest_collection_modifyitems(items): items.clear()\n"
        "def pytest_sessionfinish(session): session.exitstatus = 0",
    },
    "a pytest.ini": {"solution.py": WRONG, "pytest.ini": "[pytest]\naddopts = --co"},
    "a setup.cfg": {"solution.py": WRONG, "setup.cfg": "[tool:pytest]\naddopts = --co"},
    "a pyproject.toml": {
        "solution.py": WRONG,
        "pyproject.toml": "[tool.pytest.ini_options]\naddopts = '--co'",
    },
    "a sitecustomize": {"solution.py": WRONG, "sitecustomize.py": "import os; os._exit(0)"},
    "tests of its own": {"solution.py": WRONG, "test_hidden.py": "def test(): pass"},
    "a folder for a test": {"solution.py": WRONG, "test_hidden.py/x": ""},
    "a report": {
        "solution.py": "import os; os._exit(0)",
        ".holdfast-report.xml": '<testsuite tests="4"/>',
    },
}


@pytest.mark.parametrize("files", CHEATS.values(), ids=CHEATS.keys())
def test_a_policy_that_steers_the_tests_gets_nothing(files):
    assert score(files).reward == 0.0


def test_a_policy_that_puts_links_where_tests_belong_changes_nothing(tmp_path):
    outside = tmp_path / "outside.py"
    outside.write_text("def test(): pass")
    seen = score(
        {"solution.py": WRONG},
        f"ln -s {outside} test_hidden.py; ln -s {tmp_path} tests",
        tests={"test_hidden.py": TESTS, "tests/test_more.py": TESTS},
        sandbox="none",
    )
    assert (seen.reward, seen.info["failed"]) == (0.0, 8)
    assert outside.read_text() == "def test(): pass"
    assert not (tmp_path / "test_more.py").exists()


def test_a_policy_that_leaves_bytecode_for_the_tests_changes_nothing():
    """Bytecode of this kind is loaded whatever the source says."""
    leave = (
        "mkdir __pycache__; echo 'def expected(): return 7' > helper.py; python -c \"import "
        "py_compile; py_compile.compile('helper.py', "
        'invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)"; ls __pycache__'
    )
    tests = {
        "helper.py": "def expected(): return 5",
        "test_it.py": "import helper, solution\ndef test(): "
        "assert solution.add(2, 3) == helper.expected()",
    }
    seen = score({"solution.py": WRONG}, leave, tests=tests)
    assert (seen.reward, seen.info["failed"]) == (0.0, 1)


def test_options_for_pytest_are_those_of_the_user_as_well():
    async def run():
        env = {**QUICK, "PYTEST_ADDOPTS": "-k negative"}
        async with opened({"solution.py": RIGHT}, env=env) as workspace:
            return await workspace.step(workspace.scoring("pytest -q", {"test_it.py": TESTS}))

    assert asyncio.run(run()).info["passed"] == 1


def test_only_what_is_kept_is_scored():
    files = {"solution.py": RIGHT, "pytest.py": "raise SystemExit(0)", "pkg/conftest.py": "1/0"}
    assert score(files).reward == 0.0, "a module in the way of pytest itself"
    seen = score({**files, "other": ""}, keep=["solution.py", "pkg", "missing"])
    assert seen.reward == 1.0
    listed = score(files, command="find . -type f | sort", tests={"t": ""}, keep=["pkg"])
    assert listed.info["output"] == "./t\n[exit code 0]"
    everything = score(files, command="test -e pytest.py", tests={}, keep=["."])
    assert everything.reward == 1.0
    named = score(files, command="find . -type f", tests={}, keep=["pkg/conftest.py"])
    assert named.info["output"] == "./pkg/conftest.py\n[exit code 0]"


def test_a_policy_cannot_ask_for_a_score_that_the_rollout_did_not_make():
    async def run():
        async with opened({"solution.py": WRONG}) as workspace:
            return await workspace.step(PREFIX + "0" * 64)

    forged = asyncio.run(run())
    assert (forged.reward, forged.info["exit_code"] > 0) == (0.0, True)


def test_a_scoring_is_the_same_everywhere_so_that_it_can_be_replayed():
    assert Workspace().scoring("true") == Workspace({"a": ""}).scoring("true")


def test_what_is_scored_otherwise_is_another_action():
    workspace = Workspace()
    made = {
        workspace.scoring("pytest"),
        workspace.scoring("pytest", {"a": "1"}),
        workspace.scoring("pytest", {"a": "2"}),
        workspace.scoring("pytest", keep=[]),
        workspace.scoring("pytest", keep=["a"]),
        workspace.scoring("pytest", timeout=1.0),
    }
    assert len(made) == 6


@pytest.mark.parametrize("bad", [{"files": {"../a": ""}}, {"files": {"/a": ""}}, {"keep": [".."]}])
def test_scoring_stays_within_its_folder(bad):
    with pytest.raises(UsageError, match="not a path within the workspace"):
        Workspace().scoring("true", **bad)


def test_a_scoring_of_another_instance_is_a_mistake_and_no_reward():
    async def run():
        async with opened({"solution.py": RIGHT}) as workspace:
            foreign = Workspace({}).scoring("true")
            with pytest.raises(UsageError, match="call `scoring` on the instance that is stepped"):
                await workspace.step(foreign)
            assert workspace.scoring("true") == foreign
            return await workspace.step(foreign)

    assert asyncio.run(run()).reward == 1.0
