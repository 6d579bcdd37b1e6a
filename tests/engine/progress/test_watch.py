"""Programs and notebooks see how far a run is."""

import asyncio
import itertools
import logging
from pathlib import Path

import nbclient
import nbformat
import pytest

import holdfast
from holdfast.engine.progress import watch
from holdfast.engine.progress.counters import Progress, ProgressSnapshot
from holdfast.records.errors import UsageError

TASKS = [{"id": name, "prompt": "hi"} for name in "abc"]


async def solve(t):
    t.add(*t.task.messages)
    await t.generate(max_tokens=4)
    return 1.0 if t.task.id == "a" else 0.0


async def run(served, path: Path, **options) -> holdfast.RunResult:
    return await holdfast.run(
        solve, tasks=TASKS, policy=served.url, journal=path / "x.db", name="r", **options
    )


def test_a_function_is_called_with_frozen_values_and_at_the_end(served, tmp_path, monkeypatch):
    monkeypatch.setattr(watch, "CALL_SECONDS", 0.01)
    seen: list[ProgressSnapshot] = []
    asyncio.run(run(served, tmp_path, on_progress=seen.append))
    last = seen[-1]
    assert (last.done, last.total, last.running, last.turns, last.failed) == (3, 3, 0, 3, 0)
    assert last.tokens == served.stats().tokens
    assert last.mean_reward == pytest.approx(1 / 3)
    assert last.reward_error == pytest.approx(1 / 3)
    assert last.seconds_left == 0
    assert all(before.done <= after.done for before, after in itertools.pairwise(seen))
    with pytest.raises(AttributeError):
        last.done = 0


def test_rewards_of_earlier_processes_are_in_the_mean(served, tmp_path):
    asyncio.run(run(served, tmp_path, limit=2))
    seen: list[ProgressSnapshot] = []
    asyncio.run(run(served, tmp_path, accept_changes=True, on_progress=seen.append))
    assert seen[-1].mean_reward == pytest.approx(1 / 3)


def test_a_function_that_raises_is_no_reason_to_stop(served, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(watch, "CALL_SECONDS", 0.001)
    calls = []

    def broken(now):
        calls.append(now)
        raise KeyError("mine")

    with caplog.at_level(logging.ERROR, "holdfast"):
        result = asyncio.run(run(served, tmp_path, on_progress=broken))
    assert sum(result.report.by_status.values()) == 3
    assert len(calls) == 1
    assert "on_progress raised, and is called no more" in caplog.text
    assert "KeyError: 'mine'" in caplog.text


async def asynchronous(now):
    pass


@pytest.mark.parametrize("wrong", [7, "yes", asynchronous, lambda: None, lambda a, b: None])
def test_what_cannot_be_called_is_refused_before_anything_is_done(served, tmp_path, wrong):
    with pytest.raises(UsageError, match="on_progress"):
        asyncio.run(run(served, tmp_path, on_progress=wrong))
    assert not (tmp_path / "x.db").exists()


def test_true_is_a_line_on_standard_error(served, tmp_path, capsys):
    asyncio.run(run(served, tmp_path, on_progress=True))
    assert capsys.readouterr().err.startswith("holdfast: 3/3 done in ")
    asyncio.run(run(served, tmp_path))
    assert "done" not in capsys.readouterr().err


def test_an_outage_does_not_spoil_what_is_left(monkeypatch):
    progress, now, down = Progress(), [0.0], [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    progress.seconds_down = lambda: down[0]
    progress.total = 10
    now[0] = 50.0  # An engine was started meanwhile.
    progress.started()
    now[0], progress.done = 60.0, 5
    assert progress.seconds_left == pytest.approx(10.0)
    now[0], down[0] = 960.0, 900.0
    assert progress.seconds_left == pytest.approx(10.0)


NOTEBOOK = """
import holdfast
async def solve(t):
    t.add(*t.task.messages)
    await t.generate(max_tokens=4)
    print("said")
result = {call}(solve, tasks=[{{"id": "a", "prompt": "hi"}}], policy="{url}", journal="x.db",
    name="{name}")
"""


def test_a_notebook_shows_a_line_that_is_kept_up_to_date(served, tmp_path, monkeypatch):
    """A real kernel, with an awaited run and a synchronous one."""
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "jupyter"))
    calls = {"one": "await holdfast.run", "two": "holdfast.run_sync"}
    cells = [
        nbformat.v4.new_code_cell(NOTEBOOK.format(call=call, url=served.url, name=name))
        for name, call in calls.items()
    ]
    notebook = nbformat.v4.new_notebook(cells=cells)
    resources = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(notebook, timeout=120, resources=resources).execute()
    for cell in notebook.cells:
        lines = [out.data["text/plain"] for out in cell.outputs if "data" in out]
        assert len(lines) == 1, "one line, in its place"
        assert lines[0].startswith("1/1 done in ")
        assert [out.text for out in cell.outputs if "text" in out] == ["said\n"]
