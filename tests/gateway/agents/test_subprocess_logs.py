"""The folders of `logs=`: one for each trajectory, whatever tasks and runs are called."""

import json
import sys

import pytest
from msgspec import structs

from holdfast.gateway.agents.subprocess import BlackBoxRolloutProcessor
from support.engine.local_run import LocalRun

READS = "import json, os; print(json.load(open(os.environ['HOLDFAST_TASK']))['id'])"


async def content(t, episodes):
    """Judges an agent that needs no model."""
    return 1.0


def run_with_logs(local: LocalRun, logs) -> None:
    command = [sys.executable, "-c", READS]
    local.run(BlackBoxRolloutProcessor(command, logs=logs, finish=content), concurrency=8)


def test_tasks_of_similar_names_have_their_own_folders_and_get_their_own_tasks(tmp_path):
    names = ("a/b", "a_b", "a%2Fb", "..", ".", "x" * 300, "x" * 301)
    run_with_logs(LocalRun(*names), tmp_path / "logs")
    texts = {path.read_text().strip() for path in (tmp_path / "logs" / "run").glob("*/1/stdout")}
    kept = (tmp_path / "logs" / "run").glob("*/1/task.json")
    assert texts == set(names)
    assert {json.loads(item.read_text())["id"] for item in kept} == set(names)


@pytest.mark.parametrize("name", ["..", "."])
def test_a_run_of_any_name_writes_inside_its_logs(tmp_path, name):
    local = LocalRun()
    local.spec = structs.replace(local.spec, name=name)
    run_with_logs(local, tmp_path / "outer" / "logs")
    assert [path.name for path in tmp_path.iterdir()] == ["outer"]
    assert [path.name for path in (tmp_path / "outer").iterdir()] == ["logs"]
    (out,) = (tmp_path / "outer" / "logs").glob("*/a-0/1/stdout")
    assert out.read_text() == "a\n"


def test_plain_names_are_kept_as_they_are(tmp_path):
    run_with_logs(LocalRun("t1"), tmp_path)
    assert (tmp_path / "run" / "t1-0" / "1" / "stdout").exists()
