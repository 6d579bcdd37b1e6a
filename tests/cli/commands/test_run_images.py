"""Tasks and agents with images, as a user runs them, on an engine that is sent messages: killed,
resumed, shown and exported."""

import json

import pytest

from holdfast.records.exit_codes import Exit
from holdfast.testing import FakeEngine
from support.cli.shell import CommandLine

END = "VU5JUVVF"
PICTURE = "data:image/jpeg;base64," + "QUJD" * 4_000 + END
PARTS = [
    {"type": "text", "text": "what is it?"},
    {"type": "image_url", "image_url": {"url": PICTURE}},
]
ROLLOUT = """
import os, signal
from holdfast import Message, Role

async def solve(t):
    t.add(*t.task.messages)
    reply = await t.generate(max_tokens=12)
    if not os.path.exists("killed"):
        open("killed", "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
    t.add(Message(Role.USER, [{"type": "text", "text": "and this? "}, OTHER]))
    await t.generate(max_tokens=12)
"""
OTHER = {"type": "image_url", "image_url": {"url": "https://pictures.example/dog.png"}}
AGENT = """
import json, os, signal, sys, urllib.request

task = json.load(open(os.environ["HOLDFAST_TASK"]))
headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
headers["Content-Type"] = "application/json"
messages = list(task["messages"])
for turn in range(2):
    body = json.dumps({"model": "m", "messages": messages, "max_tokens": 12}).encode()
    url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
    request = urllib.request.Request(url, body, headers)
    with urllib.request.urlopen(request) as answer:
        said = json.load(answer)["choices"][0]["message"]
    if not os.path.exists(sys.argv[1]):
        open(sys.argv[1], "w").close()
        os.kill(os.getppid(), signal.SIGKILL)
        sys.exit(1)
    messages += [
        {"role": "assistant", "content": said["content"]},
        {"role": "user", "content": "?"},
    ]
"""
PROCESSOR = """
import sys
from holdfast import BlackBoxRolloutProcessor

solve = BlackBoxRolloutProcessor([sys.executable, {agent!r}, {marker!r}])
"""


@pytest.fixture
def shell(tmp_path):
    with FakeEngine(dialect="chat", images=True) as engine:
        shell = CommandLine(tmp_path, engine)
        row = {"id": "a", "messages": [{"role": "user", "content": PARTS}]}
        shell.write("tasks.jsonl", json.dumps(row) + "\n")
        yield shell


def test_a_rollout_with_images_is_resumed_without_sampling_again(shell) -> None:
    shell.write("agent.py", ROLLOUT.replace("OTHER", repr(OTHER)))
    assert shell.run().code == -9
    assert [call.images for call in shell.engine.calls()] == [(PICTURE,)]
    done = shell.run()
    assert done.code == Exit.OK, done.err
    other = OTHER["image_url"]["url"]
    assert [call.images for call in shell.engine.calls()] == [(PICTURE,), (PICTURE, other)]
    (row,) = map(json.loads, shell.export("rows").splitlines())
    assert row["messages"][0] == {"role": "user", "content": PARTS}
    assert row["messages"][2]["content"] == [{"type": "text", "text": "and this? "}, OTHER]
    shown = shell.holdfast("show", "r", "a/0").out
    assert "user: what is it?[image jpeg 12 kB]" in shown
    assert "and this? [image from pictures.example]" in shown
    # Of the image, the journal has the task, and no more.
    assert shell.journal.read_bytes().count(END.encode()) == 1


def test_an_agent_whose_driver_is_killed_is_given_its_answer_again(shell) -> None:
    agent, marker = str(shell.write("program.py", AGENT)), str(shell.place / "killed")
    shell.write("agent.py", PROCESSOR.format(agent=agent, marker=marker))
    assert shell.run().code == -9
    done = shell.run()
    assert done.code == Exit.OK, done.err
    assert [call.images for call in shell.engine.calls()] == [(PICTURE,)] * 2
    (row,) = map(json.loads, shell.export("rows").splitlines())
    assert [message["role"] for message in row["messages"]] == ["user", "assistant"] * 2
    assert row["messages"][0]["content"] == PARTS
    assert shell.journal.read_bytes().count(END.encode()) == 1


def test_an_engine_that_is_sent_tokens_fails_the_task_by_the_name_of_the_remedy(tmp_path) -> None:
    with FakeEngine() as engine:
        shell = CommandLine(tmp_path, engine)
        shell.write(
            "agent.py", "async def solve(t):\n    t.add(*t.task.messages)\n    await t.generate()\n"
        )
        row = {"id": "a", "messages": [{"role": "user", "content": PARTS}]}
        shell.write("tasks.jsonl", json.dumps(row) + "\n")
        shell.run()
        shown = shell.holdfast("show", "r", "a/0").out
        assert "the dialect chat" in shown
        assert PICTURE[-100:] not in shown
        assert not [call for call in engine.calls() if call.id.startswith("r/")]
