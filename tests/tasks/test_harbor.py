"""Folders of Harbor tasks, read as tasks. Harbor's own package reads the same."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from holdfast.records.errors import UsageError
from holdfast.tasks.harbor import TASK
from holdfast.tasks.read import read_tasks
from holdfast.worlds.contract.output import MIB
from holdfast.worlds.contract.spec import WorldNetwork, spec_of
from support.harbor import HARBOR_TASKS, harbor_task_folder
from support.paths import TESTS

SETTINGS = (
    "[environment]\ndocker_image = 'busybox'\ncpus = 2\nmemory_mb = 64\nworkdir = '/work'\n"
    "allow_internet = false\n[agent]\ntimeout_sec = 12\nuser = 1000\n"
    "[verifier]\ntimeout_sec = 34\n[verifier.env]\nA = '${HOME:-x}'"
)
EXAMPLES = TESTS.parent / "examples" / "harbor"


def read_one(folder: Path):
    (task,) = read_tasks(f"harbor:{folder}")
    return task


def test_a_folder_of_tasks_is_read_in_the_order_of_their_names() -> None:
    tasks = read_tasks(f"harbor:{HARBOR_TASKS}")
    assert [task.id for task in tasks] == ["add-line", "no-reward"]
    assert tasks[0].messages[0].text == "Add a line with the word done to /work/list.\n"


def test_image_limits_network_user_and_timeouts_come_from_the_folder(tmp_path) -> None:
    folder = harbor_task_folder(tmp_path, SETTINGS)
    task = read_one(folder)
    spec = spec_of(task)
    assert spec is not None
    assert (spec.image, spec.cpus, spec.memory) == ("busybox", 2, 64 * MIB)
    assert (spec.network, spec.workdir, spec.user) == (WorldNetwork.NONE, "/work", "1000")
    harbor = task.metadata[TASK]
    assert (harbor["agent_seconds"], harbor["verifier_seconds"]) == (12.0, 34.0)
    assert (harbor["verifier_user"], harbor["verifier_env"]) == ("root", {"A": "${HOME:-x}"})


def test_a_dockerfile_and_the_old_names_of_settings_are_read() -> None:
    task = read_one(EXAMPLES / "count-words")
    spec = spec_of(task)
    assert spec is not None
    assert spec.folder == str(EXAMPLES / "count-words" / "environment")


def test_memory_may_be_a_text_as_in_older_tasks(tmp_path) -> None:
    folder = harbor_task_folder(tmp_path, "[environment]\ndocker_image = 'a'\nmemory = '2G'")
    spec = spec_of(read_one(folder))
    assert spec is not None
    assert spec.memory == 2048 * MIB


def test_marks_of_a_benchmark_are_not_shown_to_agents(tmp_path) -> None:
    folder = harbor_task_folder(tmp_path)
    (folder / "instruction.md").write_text("<!-- canary GUID 1 -->\n# canary 2\n\nDo it.")
    assert read_one(folder).messages[0].text == "Do it."


def test_a_changed_test_makes_another_task(tmp_path) -> None:
    folder = harbor_task_folder(tmp_path)
    before = read_one(folder)
    (folder / "tests" / "test.sh").write_text("exit 1")
    assert read_one(folder) != before


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ("[[steps]]\nname = 'one'", "tasks of several steps"),
        ("[environment]\nos = 'windows'", "containers of windows"),
        ("[environment]\ngpus = 1", "GPUs"),
        ("[[environment.mcp_servers]]\nname = 'a'\nurl = 'http://a'", "MCP servers"),
        ("[environment.healthcheck]\ncommand = 'true'", "health checks"),
        ("[environment]\nnetwork_mode = 'allowlist'", "network_mode = 'allowlist'"),
        ("[agent]\nnetwork_mode = 'no-network'", "different networks"),
        ("[verifier]\nenvironment_mode = 'separate'", "a verifier in a container of its own"),
        ("[environment]\ncpus = 'many'", "`float | null`, got `str`"),
        ("[environment", "task.toml"),
        ("[environment]\ncpus = 1", "no environment/Dockerfile and no docker_image"),
    ],
)
def test_what_cannot_be_run_is_refused(tmp_path, config, reason) -> None:
    folder = harbor_task_folder(tmp_path, config)
    with pytest.raises(UsageError, match=r"(?i)harbor|task\.toml") as refused:
        read_one(folder)
    assert reason in str(refused.value)


@pytest.mark.parametrize("missing", ["instruction.md", "tests/test.sh"])
def test_a_task_without_an_instruction_or_a_test_is_refused(tmp_path, missing) -> None:
    folder = harbor_task_folder(tmp_path)
    (folder / missing).unlink()
    with pytest.raises(UsageError, match=f"has no {missing}"):
        read_one(folder)


def test_a_folder_without_tasks_is_refused(tmp_path) -> None:
    with pytest.raises(UsageError, match="has no tasks"):
        read_tasks(f"harbor:{tmp_path}")
    with pytest.raises(UsageError, match="is not a folder"):
        read_tasks(f"harbor:{tmp_path / 'nowhere'}")


def test_the_tasks_of_these_tests_are_whole(tmp_path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(HARBOR_TASKS / "add-line", copy)
    assert (
        read_one(copy).metadata[TASK]["digest"]
        == read_one(HARBOR_TASKS / "add-line").metadata[TASK]["digest"]
    )


HARBOR = os.environ.get("HOLDFAST_HARBOR", "")
"""A Python (3.12 or later) that has Harbor's own package, which is compared with this reading."""
READ_BY_HARBOR = """
import json, sys
from harbor.models.task.task import Task

for folder in sys.argv[1:]:
    if not Task.is_valid_dir(folder):
        print(json.dumps(None))
        continue
    task = Task(folder)
    config, env = task.config, task.config.environment
    print(json.dumps({
        "instruction": task.instruction, "image": env.docker_image, "cpus": env.cpus,
        "memory_mb": env.memory_mb, "network": env.network_mode.value, "workdir": env.workdir,
        "env": env.env, "agent_seconds": config.agent.timeout_sec, "user": config.agent.user,
        "verifier_seconds": config.verifier.timeout_sec, "verifier_env": config.verifier.env,
        "solution_env": config.solution.env, "has_steps": task.has_steps,
    }))
"""


@pytest.mark.skipif(not HARBOR, reason="HOLDFAST_HARBOR names no Python with Harbor")
def test_harbor_reads_the_same(tmp_path) -> None:
    configs = [
        SETTINGS,
        "[environment]\ndocker_image = 'a'\nmemory = '2G'\n[solution.env]\nB = '1'",
        "version = '1.0'\n[environment]\ndocker_image = 'a'\nnetwork_mode = 'public'",
    ]
    made = []
    for number, config in enumerate(configs):
        folder = harbor_task_folder(tmp_path / str(number), config)
        (folder / "instruction.md").write_text("<!-- canary GUID 1 -->\n\nDo it.\n")
        made.append(folder)
    folders = [*HARBOR_TASKS.iterdir(), *EXAMPLES.iterdir(), *made]
    read = subprocess.run(
        [HARBOR, "-W", "ignore", "-c", READ_BY_HARBOR, *map(str, folders)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    for folder, line in zip(folders, read.stdout.splitlines(), strict=True):
        theirs, task = json.loads(line), read_one(folder)
        spec, harbor = spec_of(task), task.metadata[TASK]
        assert spec is not None
        memory = None if theirs["memory_mb"] is None else theirs["memory_mb"] * MIB
        network = {"public": "bridge", "no-network": "none"}[theirs["network"]]
        assert task.messages[0].text == theirs["instruction"]
        assert (spec.image, spec.cpus, spec.memory) == (
            theirs["image"] or "",
            theirs["cpus"],
            memory,
        )
        assert (str(spec.network), spec.workdir) == (network, theirs["workdir"] or "")
        assert spec.user == str(theirs["user"] or "")
        for name in ("env", "agent_seconds", "verifier_seconds", "verifier_env", "solution_env"):
            assert harbor[name] == theirs[name], name


@pytest.mark.skipif(not HARBOR, reason="HOLDFAST_HARBOR names no Python with Harbor")
@pytest.mark.parametrize("missing", ["instruction.md", "tests/test.sh", "task.toml"])
def test_harbor_refuses_the_same(tmp_path, missing) -> None:
    folder = harbor_task_folder(tmp_path)
    (folder / missing).unlink()
    read = subprocess.run(
        [HARBOR, "-c", READ_BY_HARBOR, str(folder)], capture_output=True, text=True, check=True
    )
    assert json.loads(read.stdout) is None
    with pytest.raises(UsageError):
        read_one(folder)
