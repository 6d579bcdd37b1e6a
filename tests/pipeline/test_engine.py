"""An engine that dies is started again by its policy, or ends the run with its cause."""

import asyncio
import os
import signal
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the extra `serve`")

from holdfast.embedded.child_process import EngineDidNotStart
from holdfast.pipeline.child import PipelinePart
from holdfast.pipeline.engine import Served, SupervisedEngine
from holdfast.pipeline.settings import RestartPolicy
from holdfast.pipeline.supervisor import PipelineEnding, Supervisor
from holdfast.records.errors import JournalError
from support.conformance.engines import TINY

pytestmark = pytest.mark.timeout(300)
QUICK = RestartPolicy(restarts=1, delay=0.01)
KILLED = "the engine was killed by signal 9"


class Newest:
    """Is asked for the newest weights before each start: an error, or none."""

    def __init__(self, *answers: Exception | None):
        self.answers = list(answers)

    async def __call__(self) -> Served | None:
        if answer := self.answers.pop(0):
            raise answer
        return None


def engine(folder: Path, newest: Newest, lines: list[str]) -> SupervisedEngine:
    return SupervisedEngine(
        TINY, newest, folder=folder, log_requests=False, report=lines.append, policy=QUICK
    )


def restarts(lines: list[str]) -> list[str]:
    """The lines that this is about: an engine that takes long to start reports that as well."""
    return [line for line in lines if "starting it again" in line]


async def kill(served: SupervisedEngine) -> None:
    """As soon as it takes requests."""
    while not await asyncio.to_thread(is_healthy, served.url):
        await asyncio.sleep(0.02)
    os.kill(served._engine.pid, signal.SIGKILL)


def is_healthy(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=60):
            return True
    except (urllib.error.URLError, OSError):
        return False


def test_one_that_is_killed_each_time_is_started_again_and_then_ends_the_run(tmp_path):
    lines: list[str] = []
    waits = "import time; print('begun', flush=True); time.sleep(600)"
    part = PipelinePart("trainer", (sys.executable, "-c", waits), tmp_path / "trainer.log")

    async def body() -> PipelineEnding:
        async with engine(tmp_path, Newest(None, None), lines).serve() as served:
            url = served.url
            running = asyncio.create_task(Supervisor([part], policy=QUICK, engine=served).run())
            await kill(served)
            await kill(served)
            ending = await running
            assert served.url == url
            return ending

    ending = asyncio.run(body())
    # It may be healthy before it has said so: then it was killed as it started.
    assert "engine was killed by signal 9" in ending.cause
    assert ending.cause.endswith("(and so 1 times before)")
    assert (ending.code, ending.restarts) == (1, {"trainer": 0, "engine": 1})
    assert restarts(lines) == [f"{KILLED}; starting it again in 0.01 s"]


def test_one_that_cannot_be_started_again_is_lost_with_the_reason(tmp_path):
    """What is not an error of ours is raised: nobody waits for an engine that nobody keeps."""
    for error in (JournalError("the server is gone"), OSError("no such device")):
        lines: list[str] = []

        async def body(lines: list[str] = lines, error: Exception = error) -> str:
            async with engine(tmp_path, Newest(None, error), lines).serve() as served:
                await kill(served)
                return await served.keeper

        if isinstance(error, JournalError):
            assert asyncio.run(body()) == "the server is gone (and so 1 times before)"
        else:
            with pytest.raises(OSError, match="no such device"):
                asyncio.run(body())
        assert restarts(lines) == [f"{KILLED}; starting it again in 0.01 s"]


async def test_a_first_start_that_fails_is_tried_again_as_often(tmp_path):
    lines: list[str] = []
    newest = Newest(EngineDidNotStart("killed"), EngineDidNotStart("killed again"))
    with pytest.raises(EngineDidNotStart, match="killed again"):
        async with engine(tmp_path, newest, lines).serve():
            raise AssertionError("it did not start")
    assert restarts(lines) == ["killed; starting it again in 0.01 s"]
