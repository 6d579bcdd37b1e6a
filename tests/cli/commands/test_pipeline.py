"""How the parts of a training in processes of its own end: what another start cannot mend is not
started again. And what their supervisor serves to Prometheus."""

import asyncio
import re
import socket
from argparse import Namespace
from pathlib import Path

import aiohttp
import pytest

from holdfast.cli.commands.pipeline import (
    CANNOT_GO_ON,
    FINAL,
    _exit_code,
    _metrics,
    _part,
    _prepare_run,
    end_after_sampling,
    is_over,
)
from holdfast.cli.terminal.signals import Signals
from holdfast.engine.stop import Stop
from holdfast.journal import opened_journal
from holdfast.journal.sql.journal import Journal
from holdfast.pipeline.child import is_crash
from holdfast.pipeline.settings import RestartPolicy
from holdfast.pipeline.status import StatusFile
from holdfast.pipeline.supervisor import PipelineEnding, Supervisor
from holdfast.records.errors import (
    JournalFull,
    NotTrainable,
    PolicyRefused,
    UsageError,
    WaitTimedOut,
)
from holdfast.records.exit_codes import Exit
from holdfast.records.trajectory import Status
from holdfast.training.run.folder import PARTS
from support.records import joined, make_tasks, settle, spec

pytest.importorskip("torch", reason="the extra `train`")


def hopeless():
    from holdfast.training.run.batches import NothingRewarded, NothingValid
    from holdfast.training.run.checks import LossFailed

    refused = UsageError, NotTrainable, PolicyRefused
    return (NothingRewarded, NothingValid, LossFailed, *refused, WaitTimedOut)


@pytest.mark.parametrize("number", range(7))
def test_what_the_next_start_would_meet_again_is_final(number, capsys):
    error = hopeless()[number]("give a scorer")
    part, alone = (Namespace(until_stdin_closes=is_part) for is_part in (True, False))
    assert end_after_sampling(part, error) == CANNOT_GO_ON
    assert not is_crash(CANNOT_GO_ON, final=FINAL)
    assert end_after_sampling(alone, error) == Exit.STOPPED, "something was sampled"
    assert capsys.readouterr().err == "holdfast: give a scorer\n" * 2


def test_a_loss_that_failed_shows_its_traceback(capsys):
    from holdfast.training.run.checks import LossFailed

    error = LossFailed("the loss mine failed", "Traceback: mine.py\n")
    end_after_sampling(Namespace(until_stdin_closes=False), error)
    assert capsys.readouterr().err == "Traceback: mine.py\nholdfast: the loss mine failed\n"


@pytest.mark.parametrize("is_part", [False, True])
def test_where_no_step_is_trained_and_none_will_be_nothing_succeeded(is_part, capsys):
    from holdfast.training.run.loop import NothingTrainable

    error = NothingTrainable("sampled at top_p 0.5")
    assert end_after_sampling(Namespace(until_stdin_closes=is_part), error) == Exit.NOTHING
    assert capsys.readouterr().err == "holdfast: sampled at top_p 0.5\n"


def test_what_may_pass_is_left_to_the_supervisor():
    with pytest.raises(JournalFull):
        end_after_sampling(Namespace(until_stdin_closes=True), JournalFull("no room"))


@pytest.mark.parametrize(
    ("code", "expected", "says_how_to_go_on"),
    [
        (CANNOT_GO_ON, Exit.STOPPED, False),
        (Exit.USAGE, Exit.USAGE, False),
        (Exit.NOTHING, Exit.NOTHING, False),
        (1, Exit.STOPPED, True),
    ],
)
def test_the_command_ends_as_its_part_did(code, expected, says_how_to_go_on, capsys):
    stop = Stop()
    ending = PipelineEnding("the trainer ended", code, {})
    number = _exit_code(ending, stop, Signals(stop, resume="r"), resume="holdfast train")
    assert number == expected
    assert ("to go on: holdfast train" in capsys.readouterr().err) == says_how_to_go_on


def test_a_training_that_has_ended_needs_no_parts(tmp_path):
    """Else an engine would be started for nothing."""
    where = str(tmp_path / "holdfast.db")

    def over(**changes):
        arguments = {"journal": where, "run": "run", "steps": 2, "epochs": None} | changes
        return asyncio.run(is_over(Namespace(**arguments)))

    async def begin():
        async with opened_journal(where) as journal:
            run = await journal.create_run(spec(), (), sealed=False)
            await journal.publish_version(run, "step-2", step=2, digest="d")

    async def seal():
        async with opened_journal(where) as journal:
            run = await journal.find_run("run")
            assert run is not None
            await journal.seal(run)

    assert not over(), "there is no journal"
    assert not Path(where).exists()
    asyncio.run(begin())
    assert not over()
    assert not over(run="other")
    asyncio.run(seal())
    assert over()
    assert not over(steps=5), "it is to have more"
    assert over(epochs=1)
    assert not over(epochs=1, steps=5), "its last groups may be left to train"


# --- what failed for good


async def failed_run(journal: Journal, *, sealed: bool) -> None:
    run = await journal.create_run(spec(), make_tasks("a"), sealed=sealed)
    worker = await joined(journal, run)
    (claim,) = await journal.claim(worker, groups=1)
    await settle(journal, claim, status=Status.FAILED)
    await journal.leave(worker)


@pytest.mark.parametrize(("sealed", "still"), [(False, 0), (True, 2)])
def test_retries_are_the_supervisors_and_not_of_each_start_of_a_part(
    sealed: bool, still: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "j.db")

    async def retry() -> int:
        async with opened_journal(path) as journal:
            await failed_run(journal, sealed=sealed)
        await _prepare_run(Namespace(journal=path, run="run", epochs=1, retry_failed=True))
        await _prepare_run(Namespace(journal=path, run="nobody"))
        async with opened_journal(path) as journal:
            run = await journal.find_run("run")
            assert run is not None
            return (await journal.progress(run)).failed

    assert asyncio.run(retry()) == still, "a training that is over stays as it is"
    monkeypatch.setattr("sys.argv", ["holdfast", "train", "a.py", "--retry-failed", "--async"])
    command = _part(Namespace(run="a-1", out=str(tmp_path)), "trainer", None).command
    named = ("--run", "a-1", "--out", str(tmp_path))
    part = ("--only", "trainer", *named, "--until-stdin-closes")
    assert command[3:] == ("train", "a.py", "--async", *part), "it has the name that was made"


# --- metrics


def supervisor() -> Supervisor:
    return Supervisor([], policy=RestartPolicy(), stop=Stop(), report=lambda line: None)


def test_metrics_are_served_over_http(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    StatusFile(tmp_path / PARTS / "trainer.json").update(
        {"lag_oldest": 2.0, "idle_seconds_total": 1.5}, doing="waiting"
    )

    async def body() -> tuple[str, str]:
        async with _metrics(0, supervisor(), tmp_path), aiohttp.ClientSession() as session:
            (url,) = re.findall(r"http://127\.0\.0\.1:\d+/metrics", capfd.readouterr().err)
            async with session.get(url) as response:
                return response.headers["Content-Type"], await response.text()

    kind, text = asyncio.run(body())
    assert kind.startswith("text/plain")
    assert "# TYPE holdfast_pipeline_trainer_lag_oldest gauge" in text
    assert "holdfast_pipeline_trainer_lag_oldest 2" in text
    assert "# TYPE holdfast_pipeline_trainer_idle_seconds_total counter" in text


def test_a_port_that_is_taken_is_said_at_the_start(tmp_path: Path) -> None:
    async def body(port: int) -> None:
        async with _metrics(port, supervisor(), tmp_path):
            pass

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match=f"--metrics-port {port} cannot be used"):
            asyncio.run(body(port))
