"""Agents that write without end, and those that leave something behind."""

import sys
import tracemalloc

import pytest

from holdfast.gateway.agents.process import TAIL_CHARACTERS, AgentProcess
from holdfast.gateway.agents.subprocess import BlackBoxRolloutProcessor
from holdfast.records.encoding.redaction import hide
from support.engine.local_run import LocalRun
from support.gateway.gateway_process import is_running

LITTER = """
import subprocess, sys, time
endless = "import itertools; [open(f'{n}', 'w').close() for n in itertools.count()]"
process = subprocess.Popen([sys.executable, "-c", endless], start_new_session=True)
print(process.pid, flush=True)
time.sleep(0.3)
"""


def test_the_last_words_of_an_agent_cost_no_more_than_they_are(tmp_path):
    process = AgentProcess(["true"], folder=tmp_path, env={}, cwd=tmp_path)
    (tmp_path / "stderr").write_bytes(b"")
    with (tmp_path / "stdout").open("wb") as file:
        file.truncate(200_000_000)
        file.seek(0, 2)
        file.write(b"x" * TAIL_CHARACTERS)
    tracemalloc.start()
    try:
        assert process.last_output == "x" * TAIL_CHARACTERS
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


def test_half_a_secret_is_not_kept_where_the_last_words_begin(tmp_path):
    hide("canaryQ7x9Zp42mNw")
    process = AgentProcess(["true"], folder=tmp_path, env={}, cwd=tmp_path)
    (tmp_path / "stdout").touch()
    (tmp_path / "stderr").write_text("canaryQ7x9Zp42mNw" + "y" * (TAIL_CHARACTERS - 8))
    assert "42mNw" not in process.last_output
    assert process.last_output.endswith("y" * (TAIL_CHARACTERS - 10))


async def content(t, episodes):
    """Judges an agent that needs no model."""
    return 1.0


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere only its group is found")
def test_what_an_agent_started_in_a_session_of_its_own_is_ended_with_it(tmp_path):
    """It writes into the agent's folder, which could not be taken away meanwhile."""
    local = LocalRun()
    local.run(
        BlackBoxRolloutProcessor([sys.executable, "-c", LITTER], logs=tmp_path, finish=content)
    )
    assert local.history().status.name == "COMPLETED", local.history().failures
    assert not local.history().failures
    (message,) = tmp_path.rglob("stdout")
    assert not is_running(int(message.read_text()))
