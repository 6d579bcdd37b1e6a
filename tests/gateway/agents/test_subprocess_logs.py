"""The folders of `logs=`: one for each trajectory, whatever tasks and runs are called."""

import json
import sys

import pytest
from msgspec import structs

from holdfast.gateway.agents.subprocess import BlackBoxRolloutProcessor
from support.engine.yard import Yard

READS = "import json, os; print(json.load(open(os.environ['HOLDFAST_TASK']))['id'])"


async def content(t, episodes):
    """Judges an agent that needs no model."""
    return 1.0


def run_with_logs(yard: Yard, logs) -> None:
    command = [sys.executable, "-c", READS]
    yard.run(BlackBoxRolloutProcessor(command, logs=logs, finish=content), concurrency=8)


def test_tasks_of_similar_names_have_their_own_folders_and_get_their_own_tasks(tmp_path):
    names = ("a/b", "a_b", "a%2Fb", "..", ".", "x" * 300, "x" * 301)
    run_with_logs(Yard(*names), tmp_path / "logs")
    told = {one.read_text().strip() for one in (tmp_path / "logs" / "run").glob("*/1/stdout")}
    kept = (tmp_path / "logs" / "run").glob("*/1/task.json")
    assert told == set(names)
    assert {json.loads(one.read_text())["id"] for one in kept} == set(names)


@pytest.mark.parametrize("name", ["..", "."])
def test_a_run_of_any_name_writes_inside_its_logs(tmp_path, name):
    yard = Yard()
    yard.spec = structs.replace(yard.spec, name=name)
    run_with_logs(yard, tmp_path / "outer" / "logs")
    assert [one.name for one in tmp_path.iterdir()] == ["outer"]
    assert [one.name for one in (tmp_path / "outer").iterdir()] == ["logs"]
    (out,) = (tmp_path / "outer" / "logs").glob("*/a-0/1/stdout")
    assert out.read_text() == "a\n"


def test_plain_names_are_kept_as_they_are(tmp_path):
    run_with_logs(Yard("t1"), tmp_path)
    assert (tmp_path / "run" / "t1-0" / "1" / "stdout").exists()
