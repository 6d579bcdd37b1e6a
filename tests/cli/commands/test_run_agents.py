"""`holdfast run --agent`: which agents a command may name."""

import json

import pytest

from holdfast.cli.main import main
from holdfast.testing import FakeContainers
from support.environments.workspaces import needs_bwrap
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


@pytest.mark.parametrize("agent", ["", " "])
def test_an_agent_without_a_name_is_one_line(tasks, capsys, agent) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["run", "--agent", agent, "--tasks", tasks])
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert (ended.value.code, "--agent: wants a text" in line) == (2, True)


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


@needs_bwrap
def test_the_oracle_starts_and_contacts_no_engine(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    with FakeContainers() as containers:
        monkeypatch.setenv("DOCKER_HOST", containers.address)
        folder = f"harbor:{HARBOR_TASKS / 'add-line'}"
        code = main(
            ["run", "--agent", "oracle", "--tasks", folder, "--policy", "http://127.0.0.1:9"]
        )
    output = capsys.readouterr()
    assert code == 0, output.err
    assert "mean reward: 1.0000" in output.out


def test_agents_and_a_cluster_do_not_go_together(tasks, capsys) -> None:
    arguments = ["run", "--agent", "terminal", "--tasks", str(tasks), "--cluster", "auto"]
    assert main(arguments) == 2
    assert "--agent does not go with --cluster" in capsys.readouterr().err
