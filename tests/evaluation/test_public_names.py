"""What `holdfast.evaluation` offers, and what it costs to look."""

import importlib
import subprocess
import sys
from importlib.metadata import entry_points

import holdfast.evaluation as evaluation
from holdfast.evaluation import plugin


def test_every_name_is_there():
    for name in evaluation.__all__:
        assert getattr(evaluation, name) is not None
    assert set(dir(evaluation)) == set(evaluation.__all__)
    assert not hasattr(evaluation, "nonsense")


def test_pytest_finds_the_plugin_by_itself():
    (entry,) = entry_points(group="pytest11", name="holdfast")
    assert entry.load() is plugin


def test_the_modules_of_eval_protocol_have_their_names():
    models = importlib.import_module("holdfast.evaluation.models")
    decorating = importlib.import_module("holdfast.evaluation.pytest")
    assert models.EvaluationRow is evaluation.EvaluationRow
    assert decorating.evaluation_test is evaluation.evaluation_test
    assert "MCPGymRolloutProcessor" in dir(decorating)
    assert not hasattr(decorating, "nonsense")


def test_importing_it_imports_nothing_heavy():
    code = (
        "import sys, holdfast.evaluation, holdfast.evaluation.plugin; "
        "print([one for one in ('pydantic', 'aiohttp', 'msgspec', 'mcp') if one in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pydantic" not in done.stdout
    assert "mcp" not in done.stdout
