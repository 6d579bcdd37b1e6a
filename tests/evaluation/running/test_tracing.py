"""`--holdfast-otel`: a real collector gets every span of an evaluation, also while it works."""

import os
import signal
import subprocess
import sys
import time

import pytest

pytest.importorskip("opentelemetry.sdk")

from holdfast.testing import Fault, FaultKind
from support.collector import collecting, fields
from support.evaluation.evaluation_project import EvaluationProject

EVALUATION = """
@evaluation_test(dataset=ROWS)
def test_{name}(row):
    return 1.0
"""


def trace(project: EvaluationProject, url: str, run: str) -> str:
    options = ["--otel", url, "--journal", str(project.journal)]
    return subprocess.run(
        [sys.executable, "-m", "holdfast", "trace", run, *options],
        env=dict(os.environ), capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip


def test_an_evaluation_that_is_killed_and_resumed_sends_each_span(
    project: EvaluationProject,
) -> None:
    project.write(EVALUATION.format(name="it"))
    project.engine.set_faults(Fault(FaultKind.HOLD, matching="What is 3"))
    with collecting() as collector:
        process = project.apart("--holdfast-otel", collector.url)
        while len(collector.named("chat fake")) < 3:
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        project.engine.set_faults()
        project.engine.release()
        process = project.apart("--holdfast-otel", collector.url)
        out, _ = process.communicate(timeout=120)
        assert process.returncode == 0, out
        assert len(collector.named("chat fake")) == 4
        [run] = collector.named("invoke_workflow test_it.test_it")
        assert fields(run)["holdfast.completed"] == 4
        before = {key: span.SerializeToString() for key, span in collector.spans.items()}
        assert f"sent {len(before)} spans" in trace(project, collector.url, "test_it.test_it")
        assert before == {key: span.SerializeToString() for key, span in collector.spans.items()}


def test_each_worker_sends_its_runs(project: EvaluationProject) -> None:
    for name in "ab":
        project.write(EVALUATION.format(name=name), f"test_{name}.py")
    with collecting() as collector:
        arguments = ("-p", "xdist.plugin", "-n", 2, "--holdfast-otel", collector.url)
        out, _ = project.apart(*arguments).communicate(timeout=120)
        assert "2 passed" in out, out
        for name in "ab":
            assert len(collector.named(f"invoke_workflow test_{name}.test_{name}")) == 1
        assert len(collector.named("chat fake")) == 8


def test_a_dead_collector_fails_no_test_and_what_is_left_is_said(
    project: EvaluationProject,
) -> None:
    project.write(EVALUATION.format(name="it"))
    out, _ = project.apart("--holdfast-otel", "http://127.0.0.1:9").communicate(timeout=120)
    assert "1 passed" in out, out
    assert "4 trajectories of run test_it.test_it could not be sent to http://127.0.0.1:9" in out
    assert f"--otel http://127.0.0.1:9 --journal {project.journal}" in out


def test_a_bad_address_or_journal_is_one_line(project: EvaluationProject) -> None:
    project.write(EVALUATION.format(name="it"))
    result = project.run("--holdfast-otel", "localhost:4318")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*--holdfast-otel wants the address of a collector*"])
    arguments = ("--holdfast-otel", "http://127.0.0.1:9", "--holdfast-journal", "memory:")
    result = project.run(*arguments)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*--holdfast-otel needs a journal that another process*"])
