"""`holdfast run --agent`: which agents a command may name."""

import json

import pytest

from holdfast.cli.main import main
from support.harbor import HARBOR_TASKS


@pytest.fixture
def tasks(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tasks.jsonl").write_text(json.dumps({"prompt": "go"}))
    return "tasks.jsonl"


@pytest.mark.parametrize("arguments", [[], ["rollout.py", "--agent", "terminal"]])
def test_a_command_names_a_rollout_or_an_agent(tasks, capsys, arguments) -> None:
    assert main(["run", *arguments, "--tasks", tasks, "--policy", "http://127.0.0.1:9"]) == 2
    assert "name the rollout, FILE.py[:NAME], or an agent (--agent), not both" in (
        capsys.readouterr().err
    )


def test_a_folder_without_harbor_tasks_is_one_line(tasks, tmp_path, capsys) -> None:
    arguments = ["run", "--agent", "oracle", "--tasks", f"harbor:{tmp_path}"]
    assert main([*arguments, "--policy", "http://127.0.0.1:9"]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert "has no tasks" in line


def test_an_engine_of_containers_that_is_not_there_is_one_line(tasks, monkeypatch, capsys) -> None:
    from holdfast.testing import FakeEngine

    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/socket")
    with FakeEngine() as engine:
        arguments = ["run", "--agent", "terminal", "--tasks", f"harbor:{HARBOR_TASKS}"]
        assert main([*arguments, "--policy", engine.url, "--model", "fake", "--quiet"]) != 0
    assert "docker at unix:///nowhere/socket does not answer" in capsys.readouterr().err
