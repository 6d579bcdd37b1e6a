"""What became of a training, read from its journal alone."""

import asyncio
import json
import sys

import pytest
from msgspec import structs

from holdfast.cli.main import main
from holdfast.engine.report import build
from holdfast.evaluation.report.writer import write_report
from holdfast.journal.sqlite.journal import MemoryJournal, SqliteJournal
from holdfast.records.group import Dismissal
from holdfast.training.report import HELD_OUT, TrainingCollector, as_lines, open_collector
from support.records import consuming, joined, make_tasks, ready, settle, spec
from support.training import LOST, batches_of, rolled_out


def rewards(task):
    return {"a": [1.0, 1.0], "c": [LOST, LOST], "d": [LOST, 1.0]}.get(task, [0.0, 1.0])


async def train_two_steps(journal, consumer, stream):
    """With dynamic sampling: `a` is uninformative, of `c` nothing is valid, `d` has lost one."""
    batches = batches_of(journal, consumer, stream, groups=2, dynamic=True, max_draws=2)
    for step in (1, 2):
        await journal.publish_version(
            consumer.run, f"v{step}", step=step - 1, digest=f"digest {step}"
        )
        await batches.of_step(step)
        await journal.commit(consumer, step)


async def evaluate(journal, name, *, settled=True):
    made = structs.replace(spec(name, samples=1))
    run = await journal.create_run(made, make_tasks("x", "y"))
    worker = await joined(journal, run)
    for claim in await journal.claim(worker, groups=2 if settled else 1):
        await settle(journal, claim)
    await journal.leave(worker)


async def test_steps_dismissals_versions_staleness_and_both_curves():
    async with rolled_out(rewards) as (journal, consumer, stream):
        await train_two_steps(journal, consumer, stream)
        await evaluate(journal, f"run{HELD_OUT}v1")
        await evaluate(journal, f"run{HELD_OUT}v2", settled=False)
        collector = await open_collector(journal, consumer.run)
        report = await build(journal, consumer.run, also=collector.take)
        (result,) = collector.reports()
    assert (result.consumer, result.sealed, result.steps) == ("trainer", False, 2)
    assert result.dismissed == {Dismissal.TOO_FEW_VALID: 1, Dismissal.UNINFORMATIVE: 2}
    assert result.groups["dismissed"] == 3
    assert result.groups["trained"] + result.groups["open"] + 3 == report.groups
    assert (result.versions, result.newest) == (2, "v2")
    assert result.staleness == {0: 4, 1: 4}, "all were sampled by v1"
    assert result.stale == [(1, 0.0), (2, 1.0)]
    assert result.rewards[0] == (1, 5 / 7), "of a, b, d and e; dismissed ones count"
    assert result.held_out == [(0, 1.0)], "an evaluation that is not over says nothing"
    assert as_lines(result) == [
        (
            "  trainer: 2 steps trained on 4 groups, 3 dismissed (1 too few valid members, "
            "2 uninformative), 0 open; the run is open for more tasks"
        ),
        "  2 weight versions, the newest v2; staleness 0.50 on average, at most 1",
        f"  reward by step: 1: {result.rewards[0][1]:.3f}, 2: {result.rewards[1][1]:.3f}",
        "  held out: 0: 1.000",
    ]


def test_a_line_has_the_first_and_the_last_of_many_steps():
    async def body():
        async with rolled_out(rewards) as (journal, consumer, stream):
            await train_two_steps(journal, consumer, stream)
            return (await open_collector(journal, consumer.run)).reports()[0]

    report = structs.replace(asyncio.run(body()), rewards=[(n, n / 100) for n in range(1, 101)])
    line = next(line for line in as_lines(report) if "reward by step" in line)
    assert line.startswith("  reward by step: 1: 0.010, ")
    assert line.endswith(", 100: 1.000")
    assert line.count(",") <= 8


async def test_a_run_that_nobody_trains_on_has_no_such_report(tmp_path):
    journal = MemoryJournal()
    run, _, claims = await ready(journal, "a")
    await settle(journal, claims[0])
    collector = await open_collector(journal, run)
    await build(journal, run, also=collector.take)
    await write_report(journal, run, tmp_path / "r.html")
    assert (collector.reports()) == []
    assert '"training":[]' in (tmp_path / "r.html").read_text()


def test_it_needs_no_torch():
    code = "import sys, holdfast.training.report; assert 'torch' not in sys.modules"
    import subprocess

    subprocess.run([sys.executable, "-c", code], check=True)
    assert TrainingCollector({}, [], sealed=True, held_out=[]).reports() == []


# --- on the command line


@pytest.fixture
def trained(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    async def fill():
        journal = SqliteJournal(tmp_path / "holdfast.db")
        run = await journal.create_run(spec(samples=2), (), sealed=False)
        await journal.admit(run, make_tasks(*"abc"))
        worker = await joined(journal, run)
        for claim in await journal.claim(worker, groups=2):
            await settle(journal, claim)
        await journal.leave(worker)
        consumer = await consuming(journal, run)
        await journal.publish_version(run, "step-0", step=0, digest="d")
        await journal.next_batch(consumer, 1, groups=2)
        await journal.dismiss(consumer, ["b"], reason=Dismissal.UNINFORMATIVE)
        await journal.commit(consumer, 1)
        await journal.unsubscribe(consumer)
        for number in range(3):
            await evaluate(journal, f"run{HELD_OUT}step-{number}")
        await evaluate(journal, f"other{HELD_OUT}step-0")
        await journal.close()

    asyncio.run(fill())


def test_runs_says_what_is_trained_and_puts_evaluations_under_their_training(trained, capsys):
    assert main(["runs"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith(" 3 tasks × 2 samples, 4 of 6 settled (2 PENDING, 4 COMPLETED), "
                             "open for more tasks")  # fmt: skip
    assert lines[1] == "  model model, mean reward 1.0000 (n=4)"
    assert lines[2] == "  trainer: 1 step trained on 1 group, 1 dismissed, 1 open"
    assert lines[3] == "  3 evaluations (--all): run.held-out.step-0, … run.held-out.step-2"
    assert lines[4].startswith("other.held-out.step-0: ")
    assert len(lines) == 6
    assert main(["runs", "--all"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 3 + 2 * 4


def test_runs_as_json_lists_every_run(trained, capfdbinary):
    assert main(["runs", "--json"]) == 0
    data = json.loads(capfdbinary.readouterr().out)
    assert [row["sealed"] for row in data] == [False, True, True, True, True]
    ends = {"trained": 1, "dismissed": 1, "open": 1, "steps": 1}
    assert data[0]["consumers"] == {"trainer": ends}
    assert data[1]["consumers"] == {}


def test_report_and_show_say_what_became_of_the_groups(trained, capsys):
    assert main(["report", "run"]) == 0
    out = capsys.readouterr().out
    assert "mean reward: 1.0000 (n=4)" in out
    assert "trainer: 1 step trained on 1 group, 1 dismissed (1 uninformative), 1 open" in out
    assert "held out: 0: 1.000" in out
    assert main(["show", "run"]) == 0
    assert capsys.readouterr().out.startswith(out.partition("\n\n")[0])


def test_the_page_has_the_numbers_and_the_curves(trained, capsys):
    assert main(["report", "run", "--out", "run.html"]) == 0
    with open("run.html", encoding="utf-8") as page:
        text = page.read()
    index = text.partition('id="index">')[2].partition("</script>")[0]
    (training,) = json.loads(index)["training"]
    assert training["rewards"] == [[1, 1.0]]
    assert training["held_out"] == [[0, 1.0]]
    assert training["dismissed"] == {"uninformative": 1}
