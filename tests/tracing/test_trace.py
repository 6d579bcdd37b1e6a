"""`--otel` and `holdfast trace`: a real collector gets every span, and none of it costs the run."""

import os
import signal
import subprocess
import sys
import time

import pytest

pytest.importorskip("opentelemetry.sdk")

from holdfast.testing import FakeEngine
from support.collector import collecting, fields
from support.fork_server import Popen
from support.hidden_packages import hide
from support.view import rich_journal

AGENT = """
import asyncio
import holdfast


@holdfast.tool
async def look(word: str) -> str:
    return f"{word} is an alga"


async def solve(t: holdfast.Rollout) -> None:
    t.add(*t.task.messages)
    for _ in range(3):
        await t.generate()
        await asyncio.sleep(0.1)
        t.add("and then?")


def score(trajectory):
    return 1.0
"""
TRAJECTORIES = 60


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "agent.py").write_text(AGENT)
    lines = [f'{{"id": "q{n}", "prompt": "question {n}"}}\n' for n in range(TRAJECTORIES)]
    (tmp_path / "tasks.jsonl").write_text("".join(lines))
    with FakeEngine(replies=["a reply"]) as engine:
        yield tmp_path, engine


def begin(folder, url, *more):
    place, engine = folder
    arguments = ["run", "agent.py:solve", "--tasks", "tasks.jsonl", "--run", "live", "--quiet"]
    options = ["--policy", engine.url, "--otel", url, *more]
    return Popen(
        [sys.executable, "-m", "holdfast", *arguments, *options],
        cwd=place, env=dict(os.environ), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def trace(folder, url, *more, run="live", env=None):
    return subprocess.run(
        [sys.executable, "-m", "holdfast", "trace", run, "--otel", url, *more],
        cwd=folder, env=env or dict(os.environ), capture_output=True, text=True, check=False,
    )  # fmt: skip


def ended(process):
    _, errors = process.communicate(timeout=120)
    return process.returncode, errors


def test_a_run_that_is_killed_and_resumed_sends_each_span_and_the_journal_sends_the_same(folder):
    with collecting() as collector:
        process = begin(folder, collector.url, "--concurrency", "4")
        while len(collector.spans) < 20:
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert len(collector.spans) < 4 * TRAJECTORIES, "it was sent while the run worked"
        assert ended(begin(folder, collector.url)) == (0, "")
        assert len(collector.named("chat fake")) >= 3 * TRAJECTORIES
        own = collector.named("invoke_agent solve")
        assert {fields(span)["gen_ai.conversation.id"] for span in own} == {
            f"live/q{n}/0" for n in range(TRAJECTORIES)
        }
        [run] = collector.named("invoke_workflow live")
        assert {span.links[0].span_id for span in own} == {run.span_id}
        assert fields(run)["holdfast.completed"] == TRAJECTORIES
        before = {key: span.SerializeToString() for key, span in collector.spans.items()}
        done = trace(folder[0], collector.url)
        assert done.stdout == f"sent {len(before)} spans of run live to {collector.url}\n"
        assert before == {key: span.SerializeToString() for key, span in collector.spans.items()}


@pytest.mark.parametrize("state", ["dead", "slow", "refusing"])
def test_a_collector_that_takes_nothing_costs_the_run_nothing_and_what_is_left_is_said(
    folder, state
):
    with collecting() as collector:
        url = collector.url
        if state == "slow":
            collector.gate.clear()
        collector.status = 401 if state == "refusing" else 200
        url = "http://127.0.0.1:9" if state == "dead" else url
        code, errors = ended(begin(folder, url))
        assert code == 0
        [line] = errors.splitlines()
        reason = {"dead": "(Connection refused)", "slow": "(", "refusing": "code: 401"}[state]
        assert reason in line
        assert f"60 trajectories of run live could not be sent to {url}" in line
        assert f"send it by holdfast trace live --otel {url} --journal holdfast.db" in line
        collector.status = 200
        collector.gate.set()
        assert trace(folder[0], collector.url).returncode == 0
        assert len(collector.named("chat fake")) == 3 * TRAJECTORIES


def test_everything_of_a_journal_becomes_spans(tmp_path):
    rich_journal(tmp_path / "rich.db")
    with collecting() as collector:
        done = trace(tmp_path, collector.url, "--journal", "rich.db", run="rich")
        assert done.returncode == 0, done.stderr
        names = [span.name for span in collector.spans.values()]
    assert sum(name.startswith("invoke_agent") for name in names) == 15, "one is still open"
    assert "execute_tool look_up" in names
    assert "invoke_workflow rich" not in names


def test_a_collector_that_refuses_is_quoted_and_headers_are_sent_but_never_said(tmp_path):
    rich_journal(tmp_path / "rich.db")
    secret = "Bearer%20canaryQ7x9Zp42mNw"
    variables = dict(os.environ) | {"OTEL_EXPORTER_OTLP_HEADERS": f"authorization={secret}"}
    with collecting() as collector:
        collector.status = 401
        done = trace(tmp_path, collector.url, "--journal", "rich.db", run="wide", env=variables)
    assert done.returncode == 5
    assert "300 trajectories of run wide could not be sent" in done.stderr
    assert "401" in done.stderr
    assert "canary" not in done.stderr + done.stdout


@pytest.mark.parametrize(
    ("url", "line"),
    [
        ("localhost:4318", "--otel wants the address of a collector, as http://HOST:4318"),
        ("http://me:secretsecret@127.0.0.1:4318", "--otel takes no password"),
        ("http://127.0.0.1:9", "there is no run 'none' in the journal"),
    ],
)
def test_bad_input_is_one_line(tmp_path, url, line):
    rich_journal(tmp_path / "rich.db")
    done = trace(tmp_path, url, "--journal", "rich.db", run="none")
    assert done.returncode == 2
    assert line in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert "secretsecret" not in done.stderr


def test_no_other_extra_is_needed(tmp_path):
    (tmp_path / "there").mkdir()
    rich_journal(tmp_path / "rich.db")
    others = {"jinja2", "markupsafe", "torch", "pydantic", "pyarrow", "pandas"}
    variables = hide(others, tmp_path / "there")
    with collecting() as collector:
        done = trace(tmp_path, collector.url, "--journal", "rich.db", run="other", env=variables)
        assert (done.returncode, done.stderr) == (0, "")
        assert len(collector.spans) == 601


def test_without_the_extra_it_is_named(tmp_path):
    (tmp_path / "there").mkdir()
    variables = hide({"opentelemetry"}, tmp_path / "there")
    done = trace(tmp_path, "http://127.0.0.1:9", env=variables)
    assert done.returncode == 2
    assert done.stderr == (
        "holdfast: --otel needs opentelemetry: pip install '.[otel]' (in the clone)\n"
    )
