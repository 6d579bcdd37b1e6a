"""One bad trajectory in 350 costs one trajectory."""

import json

from holdfast.testing import FakeEngine
from support.crash.command import finished, holdfast, run_words, write_tasks


def test_500_trajectories_of_which_1_in_350_raises_are_all_accounted_for(tmp_path):
    tasks = write_tasks(tmp_path / "tasks.jsonl", [str(i) for i in range(500)])
    with FakeEngine(mean_length=8) as engine:
        arguments = run_words(tmp_path, engine, tasks, rollout="one_in_many_raises.py")
        code, out, err = finished(holdfast(*arguments, "--json"))
        assert code == 0, err
        report = json.loads(out)
        assert report["by_status"]["FAILED"] == 2
        assert report["by_status"]["COMPLETED"] + report["by_status"].get("TRUNCATED", 0) == 498
        (cause,) = report["causes"]
        assert cause["permanent"] == 2
        assert cause["failures"] == 4, "a bug is tried once more, to tell it from a flake"
        assert "RuntimeError: the parser met something odd" in cause["traceback"]
        assert "one_in_many_raises.py" in cause["traceback"]
        assert engine.stats().requests == 500, "the second attempts were replayed"
        code, out, err = finished(holdfast(*arguments, "--fail-on-permanent-failure"))
        assert code == 1
        assert "the parser met something odd" in out
        assert engine.stats().requests == 500
