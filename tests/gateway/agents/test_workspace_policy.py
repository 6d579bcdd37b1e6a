"""What an agent that is started again finds around it: nothing, its beginning, or where it was."""

import sys
import time
from pathlib import Path

import pytest

from holdfast.environments import Workspace
from holdfast.environments.workspace import WorkspaceLimit
from holdfast.environments.workspace.sandbox.sandbox import why_no_bwrap
from holdfast.gateway.agents.subprocess import BlackBoxRolloutProcessor
from holdfast.gateway.agents.workspace import FreshWorld, WorkspaceWorld
from holdfast.journal.sqlite.store import SqliteStore
from holdfast.records.errors import EnvironmentBroken, UsageError
from holdfast.records.group import GroupPolicy
from holdfast.records.step import EnvironmentStepped
from support.engine.local_run import LocalRun
from support.paths import AGENT_PROGRAMS
from support.rollout.stage import Oracle

AGENT = [sys.executable, str(AGENT_PROGRAMS / "folder_agent.py")]
CALL = '<tool_call>{{"name": "add", "arguments": {{"a": {}, "b": 2}}}}</tool_call>'
TESTS = {"test.sh": "test $(wc -l < ledger) = 3\n"}


def adding(request):
    turn = bytes(token for token in request.prompt if token < 256).count(b"assistant\n")
    return "that is all" if turn > 3 else CALL.format(turn)


def world(restore: str, flags: Path | None = None, **options) -> WorkspaceWorld:
    """`flags`: a folder in which a program may note that it died."""

    def workspace(task):
        # Within bubblewrap there would be no place outside where it could note that.
        sandbox = "auto" if flags is None else "none"
        return Workspace(
            {"readme": "add"}, read_only=[str(AGENT_PROGRAMS)], sandbox=sandbox, **options
        )

    return WorkspaceWorld(workspace, restore=restore)


async def passes(t, episodes):
    action = episodes[0].environment.scoring("sh test.sh", TESTS, keep=["ledger"])
    return (await episodes[0].step(action)).reward


def crash(tmp_path: Path, at: str, phase: str = "before") -> dict[str, str]:
    return {"CRASH_AT": at, "CRASH_ONCE": str(tmp_path / "crashed"), "CRASH_PHASE": phase}


def performed(processor: BlackBoxRolloutProcessor, scorer=None, **options) -> LocalRun:
    local = LocalRun(policy=Oracle(adding))
    local.run(processor, scorer, **options)
    history = local.history()
    assert history.status.name == "COMPLETED", history.failures
    return local


@pytest.fixture(scope="module")
def undisturbed():
    local = performed(BlackBoxRolloutProcessor(AGENT, world=world("start"), finish=passes))
    assert local.history().reward == 1.0
    return local.rows()


async def content(t, episodes):
    """Judges an agent that needs no model."""
    return 1.0


def test_a_fresh_world_is_an_empty_folder_for_each_attempt_and_always_at_the_same_path(tmp_path):
    looked = (
        "import os, sys\n"
        "task = os.environ['HOLDFAST_TASK']\n"
        f"found = open({str(tmp_path / 'found')!r}, 'a')\n"
        "found.write(f'{os.getcwd()} {task} {os.listdir()}\\n')\n"
        "found.close()\n"
        "open('half-done', 'w').write('x')\n"
        f"sys.exit(0 if open({str(tmp_path / 'found')!r}).read().count('\\n') > 1 else 1)"
    )
    performed(
        BlackBoxRolloutProcessor([sys.executable, "-c", looked], world=FreshWorld(), finish=content)
    )
    first, second = (tmp_path / "found").read_text().splitlines()
    assert first == second
    assert first.endswith(" []")
    assert not Path(first.split()[0]).exists()


@pytest.mark.parametrize("logs", [True, False], ids=["logs", "no logs"])
def test_an_agent_that_tells_the_model_where_it_is_is_given_back_its_past(tmp_path, logs):
    command = [sys.executable, str(AGENT_PROGRAMS / "curl_loop.py"), "--urllib", "--located"]
    kept = {"logs": tmp_path / "logs"} if logs else {}
    local = performed(BlackBoxRolloutProcessor(command, env=crash(tmp_path, "1,2"), **kept))
    history = local.history()
    assert len(history.failures) == 2
    assert len(local.policy.requests) == 4
    assert not history.forks


def test_a_word_of_the_command_that_names_a_file_here_is_found_from_the_fresh_folder(
    tmp_path, monkeypatch
):
    (tmp_path / "agent.py").write_text("print('here')")
    monkeypatch.chdir(tmp_path)
    logs = tmp_path / "logs"
    performed(BlackBoxRolloutProcessor([sys.executable, "agent.py"], logs=logs, finish=content))
    (out,) = (tmp_path / "logs").rglob("stdout")
    assert out.read_text() == "here\n"


def test_a_workspace_is_the_agents_home_and_its_end_is_judged(undisturbed, tmp_path):
    local = performed(
        BlackBoxRolloutProcessor(AGENT, world=world("start"), finish=passes, logs=tmp_path)
    )
    history = local.history()
    assert (history.reward, len(history.generations)) == (1.0, 4)
    assert local.rows() == undisturbed
    assert len(history.worlds["0"].snapshots) == 1
    (out,) = tmp_path.rglob("stdout")
    assert out.read_text() == "done\n"


@pytest.mark.parametrize("phase", ["before", "told"])
def test_an_agent_that_starts_over_finds_its_beginning(tmp_path, undisturbed, phase):
    local = performed(
        BlackBoxRolloutProcessor(
            AGENT, env=crash(tmp_path, "2", phase), world=world("start", tmp_path), finish=passes
        )
    )
    history = local.history()
    assert [failure.cause for failure in history.failures] == ["environment"]
    assert len(local.policy.requests) == 4
    assert not history.forks
    assert local.rows() == undisturbed


@pytest.mark.parametrize(
    ("at", "phase"),
    [("0", "before"), ("0", "after"), ("1", "told"), ("2,3", "before"), ("1,2", "after")],
)
def test_an_agent_that_can_go_on_finds_its_home_as_it_was(tmp_path, undisturbed, at, phase):
    local = performed(
        BlackBoxRolloutProcessor(
            AGENT,
            env=crash(tmp_path, at, phase),
            logs=tmp_path / "logs",
            world=world("latest", tmp_path),
            resume_command=[*AGENT, "--resume"],
            finish=passes,
        )
    )
    history = local.history()
    assert len(local.policy.requests) == 4
    assert not history.forks
    assert local.rows() == undisturbed
    message = "".join(sorted(path.read_text() for path in (tmp_path / "logs").rglob("stdout")))
    # Before its first call nothing is kept: it starts over.
    assert message == ("done\n" if (at, phase) == ("0", "before") else "resumed\n")


def test_snapshots_are_taken_only_where_something_changed():
    local = performed(BlackBoxRolloutProcessor(AGENT, world=world("latest")))
    # Before each of its four calls it saved its conversation; after the last, it did nothing.
    assert len(local.history().worlds["0"].snapshots) == 4


def test_a_judging_that_breaks_is_done_again_without_the_agent(tmp_path):
    times = []

    async def breaks(t, episodes):
        times.append("asked")
        if len(times) == 1:
            raise EnvironmentBroken("the judge is ill")
        reward = await passes(t, episodes)
        if len(times) == 2:
            raise EnvironmentBroken("the judge is ill again")
        return reward

    local = performed(
        BlackBoxRolloutProcessor(AGENT, world=world("start"), finish=breaks, logs=tmp_path)
    )
    assert (len(times), local.history().reward) == (3, 1.0)
    assert len(list(tmp_path.rglob("stdout"))) == 1
    steps = [item for item in local.history().in_order if isinstance(item, EnvironmentStepped)]
    assert [step.reward for step in steps] == [0.0, 1.0]


def test_what_an_agent_left_and_is_damaged_is_made_anew_by_it(tmp_path):
    local, times = LocalRun(policy=Oracle(adding)), []

    async def damaged(t, episodes):
        times.append("asked")
        if len(times) == 1:
            _, digest = t.session.history.worlds["0"].snapshots[-1]
            await local.journal.transact(
                SqliteStore.run, "DELETE FROM blobs WHERE digest = :digest", digest=digest
            )
            raise EnvironmentBroken("the judge is ill")
        return await passes(t, episodes)

    local.run(BlackBoxRolloutProcessor(AGENT, world=world("start"), finish=damaged, logs=tmp_path))
    history = local.history()
    assert (history.status.name, history.reward) == ("COMPLETED", 1.0), history.failures
    assert len(local.policy.requests) == 4
    assert [fork.reason for fork in history.forks] == ["what the agent left is damaged"]


def test_a_workspace_that_grows_too_large_is_the_policys_limit(tmp_path):
    small = world("latest", workspace_limit=WorkspaceLimit(bytes=1000, files=10))
    local = LocalRun(policy=Oracle(lambda request: CALL.format("1" * 400)))
    local.run(BlackBoxRolloutProcessor(AGENT, world=small))
    history = local.history()
    assert (history.status.name, history.finished.reason) == ("TRUNCATED", "environment_limit")


def test_an_agent_that_falls_silent_in_its_workspace_is_ended_with_what_it_started():
    mark = f"{time.monotonic_ns()}"
    command = ["sh", "-c", f"sleep 1000.{mark} & sleep 1000.{mark}"]
    local = LocalRun(group=GroupPolicy(refill=0))
    local.run(BlackBoxRolloutProcessor(command, world=world("start"), silence=0.2), max_retry=0)
    assert [failure.type for failure in local.history().failures] == ["AgentSilent"]
    lines = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists()]
    assert not [line for line in lines if mark.encode() in line]


def test_an_agent_in_its_workspace_has_nothing_of_the_drivers(monkeypatch, tmp_path):
    monkeypatch.setenv("SECRET_OF_THE_DRIVER", "canary")
    script = "env; pwd; cat $HOLDFAST_TASK; ls -A"
    performed(
        BlackBoxRolloutProcessor(
            ["sh", "-c", script], world=world("start"), logs=tmp_path, finish=content
        )
    )
    (out,) = tmp_path.rglob("stdout")
    text = out.read_text()
    assert "canary" not in text
    assert text.endswith("readme\n")
    assert '"do a"' in text
    assert "OPENAI_BASE_URL=http://127.0.0.1" in text
    if not why_no_bwrap():
        assert "\n/workspace\n" in text


def test_a_program_that_is_not_there_is_a_failure_with_its_words():
    local = LocalRun()
    local.run(BlackBoxRolloutProcessor(["no-such-agent"], world=world("start")), max_retry=1)
    history = local.history()
    assert history.status.name == "FAILED"
    assert "no-such-agent" in history.failures[-1].message


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"world": "fresh"}, "a FreshWorld or a WorkspaceWorld"),
        ({"resume_command": ["x"]}, "resume_command goes with"),
        ({"resume_command": ["x"], "world": world("start")}, "resume_command goes with"),
        ({"resume_command": "x", "world": world("latest")}, "a list of words"),
        ({"cwd": "/", "world": world("start")}, "its cwd is that"),
    ],
)
def test_worlds_that_make_no_sense_are_refused(options, message):
    with pytest.raises(UsageError, match=message):
        BlackBoxRolloutProcessor(AGENT, **options)


def test_a_workspace_is_made_from_a_task():
    with pytest.raises(UsageError, match="makes a Workspace or a WorldEnvironment from a task"):
        WorkspaceWorld(Workspace())
    with pytest.raises(UsageError, match="there are start and latest"):
        WorkspaceWorld(lambda task: Workspace(), restore="newest")
