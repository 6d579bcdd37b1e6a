"""`holdfast run --world` and `holdfast worlds`, on the stand-in of a container engine."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.testing import FakeContainers, FakeEngine
from support.cli.shell import Done, end, start
from support.environments.workspaces import needs_bwrap

pytestmark = needs_bwrap
AGENT = """
import os
import holdfast


async def solve(t):
    episode = await t.env(holdfast.WorldEnvironment(snapshot_every=1))
    t.add(*t.task.messages)
    for turn in range(2):
        await t.generate(max_tokens=4)
        if turn and "DIE" in os.environ:
            os.kill(os.getpid(), 9)
        await episode.step("echo 1 >> /log")
"""
PRICES = '[worlds]\ndocker = 3600000\n[models."*"]\nprompt = 0\ncompletion = 0\n'


def holdfast(*arguments: object, cwd: Path, env: dict[str, str]) -> Done:
    return end(start(*arguments, cwd=cwd, env=env))


@pytest.fixture
def containers() -> Iterator[FakeContainers]:
    with FakeContainers() as fake:
        yield fake


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "agent.py").write_text(AGENT)
    (tmp_path / "tasks.jsonl").write_text('{"id": "a", "prompt": "go"}\n')
    (tmp_path / "prices.toml").write_text(PRICES)
    return tmp_path


@pytest.fixture
def run(place: Path, containers: FakeContainers):
    with FakeEngine() as engine:

        def run(*options: object, **env: str):
            return holdfast(
                "run", "agent.py", "--tasks", "tasks.jsonl", "--run", "first", "--quiet",
                "--policy", engine.url, *options,
                cwd=place, env={"DOCKER_HOST": containers.address, **env},
            )  # fmt: skip

        yield run


def listed(place: Path, containers: FakeContainers, *options: str) -> list[dict[str, object]]:
    done = holdfast(
        "worlds", "--json", *options, cwd=place, env={"DOCKER_HOST": containers.address}
    )
    assert done.code == 0, done.err
    rows: list[dict[str, object]] = json.loads(done.out)
    return rows


def test_a_killed_run_is_listed_and_goes_on_and_leaves_nothing(run, place, containers) -> None:
    assert run("--world", "docker:busybox", DIE="1").code == -9
    world, snapshot = listed(place, containers)
    assert (world["kind"], world["state"]) == ("world", "waits for its run")
    assert (world["trajectory"], snapshot["kind"]) == ("first/a/0", "snapshot")
    done = run("--world", "docker:busybox")
    assert (done.code, "\n  1 world: 0.00 h, " in done.out) == (0, True)
    assert listed(place, containers) == []
    assert (containers.containers, containers.snapshots) == ([], [])
    gone = listed(place, containers, "--all", "--price", "prices.toml")
    assert {row["state"] for row in gone} == {"removed"}
    assert [row["kind"] for row in gone].count("world") == 1
    assert float(str(gone[0]["cost"])) > 0


def test_a_dry_run_leaves_no_container(run, containers) -> None:
    done = run("--world", "docker:busybox", "--dry-run")
    assert done.code == 0, done.err
    assert "POST /containers/create" in " ".join(containers.requests).replace("/v1.44", "")
    assert (containers.containers, containers.snapshots) == ([], [])


def test_clean_removes_what_a_killed_run_left_and_what_nobody_knows(run, place, containers) -> None:
    run("--world", "docker:busybox", DIE="1")
    container = containers.containers[0]
    stray = dict(container.body["Labels"]) | {"dev.holdfast.world": "0123456789abcdef"}
    containers.state.add_stray(container, "holdfast-stray", stray)
    assert [row["state"] for row in listed(place, containers)][-1] == "unknown to the journal"
    done = holdfast("worlds", "--clean", cwd=place, env={"DOCKER_HOST": containers.address})
    assert (done.code, done.out) == (0, "no worlds\n")
    assert done.line == "holdfast: removed 3 worlds and snapshots"
    assert (containers.containers, containers.snapshots) == ([], [])
    assert run("--world", "docker:busybox").code == 0


def test_worlds_count_for_the_limit_on_cost(run) -> None:
    assert run("--world", "docker:busybox", DIE="1").code == -9
    done = run("--world", "docker:busybox", "--price", "prices.toml", "--max-cost", "0.5")
    assert "max-cost (0.50) is reached" in done.out + done.err


@pytest.mark.parametrize(
    ("world", "line"),
    [
        ("dockr:busybox", "the part before the colon is one of docker:, podman:"),
        ("docker:", "names no image"),
        ("docker:busybox,memory=much", "'much' is no value of memory"),
        ("docker:busybox,cake=1", "'cake=1' is no setting"),
        ("docker:nowhere/nothing", "cannot pull it: pull access denied"),
        ("docker:./broken", "the Dockerfile in"),
        ("docker:./empty", "there is no Dockerfile in"),
        ("docker:busybox,disk=1g", "cannot limit disk"),
    ],
)
def test_a_world_that_cannot_be_is_one_line(run, place, world, line) -> None:
    (place / "empty").mkdir()
    (place / "broken").mkdir()
    (place / "broken" / "Dockerfile").write_text("FROM busybox\nRUN echo doing && exit 3\n")
    done = run("--world", world)
    assert done.code == 2
    assert line in done.err.splitlines()[-1]
    assert len(done.err.splitlines()) <= 2, "a pull or a build says that it begins"


def test_an_engine_that_is_not_there_is_one_line(run, tmp_path) -> None:
    address = f"unix://{tmp_path}/nobody"
    done = run("--world", "docker:busybox", DOCKER_HOST=address)
    assert done.code != 0
    assert f"docker at {address} does not answer" in done.line
    assert "start it, or set DOCKER_HOST" in done.line


def test_a_rollout_without_any_world_is_told_what_to_give(run) -> None:
    done = run()
    assert done.code != 0
    assert "names no world, and the run has none: give --world" in done.out + done.err
