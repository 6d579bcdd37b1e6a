"""Tasks that user code leaves behind are ended, and told by the trajectory that they came from."""

import asyncio
import json
import subprocess
import sys

from holdfast.engine.guards.orphan_tasks import end_tasks, left_behind
from holdfast.policy.client.circuit_breaker import PROBE_TASK_PREFIX
from support.engine.local_run import LocalRun, turn


async def forever():
    await asyncio.sleep(600)


async def starts_another():
    asyncio.create_task(forever())  # noqa: RUF006 - nobody keeps it, that is the point
    await asyncio.sleep(600)


async def test_what_is_left_behind_is_known_by_its_trajectory():
    async def rollout(t):
        await turn(t)
        if t.key.sample:
            asyncio.create_task(starts_another())  # noqa: RUF006

    async def scorer(view):
        asyncio.create_task(forever(), name="mine")  # noqa: RUF006
        return 1.0

    before = asyncio.all_tasks()
    local = LocalRun("a", samples=2)
    await local.work(rollout, scorer)
    other = asyncio.create_task(forever())
    texts = await end_tasks(asyncio.all_tasks() - before)
    assert other.cancelled()
    messages, left = texts, asyncio.all_tasks() - before
    assert messages == [
        "forever",
        "forever of run/a/0",
        "forever of run/a/1",
        "forever of run/a/1",
        "starts_another of run/a/1",
    ]
    assert not left


async def test_probes_of_engines_are_no_orphans():
    before = asyncio.all_tasks()
    ours = asyncio.create_task(forever(), name=f"{PROBE_TASK_PREFIX}http://engine")
    theirs = asyncio.create_task(forever(), name="mine")
    assert left_behind(before) == [theirs]
    await end_tasks([ours, theirs])


AGENT = """
import asyncio

async def watch_the_weather():
    await asyncio.sleep(600)

async def rollout(t):
    t.add(*t.task.messages)
    await t.generate(max_tokens=4)
    if t.key.task != "b":
        asyncio.create_task(watch_the_weather())
"""


def test_the_command_names_them(served, tmp_path):
    (tmp_path / "agent.py").write_text(AGENT)
    tasks = "".join(json.dumps({"id": name, "prompt": name}) + "\n" for name in "abc")
    (tmp_path / "tasks.jsonl").write_text(tasks)
    command = [sys.executable, "-m", "holdfast", "run", "agent.py", "--tasks", "tasks.jsonl"]
    command += ["--policy", served.url, "--run", "first", "--renderer", "bytes"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    text = "ended 2 tasks left behind: watch_the_weather of first/a/0, watch_the_weather of first/c"
    assert text in done.stderr
