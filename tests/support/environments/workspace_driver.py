"""A run of one agent in a workspace, in a process that may be killed: `python workspace_driver.py
JOURNAL SANDBOX KILL_AT`. The policy kills the process when it is asked for turn KILL_AT, once."""

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

import holdfast
from holdfast.environments.workspace import Workspace
from holdfast.journal.sqlite.journal import SqliteJournal
from support.engine.local_run import LocalRun
from support.rollout.stage import Oracle

MAKING = (
    "head -c 8 /dev/urandom | od -An -tx1 > token; cp token solution.py; sed -i 's/.*/n = 3/' "
    "solution.py; mkdir -p a/b; ln -s a/b link; echo kept > link/file; chmod 750 link/file"
)
COMMANDS = (
    MAKING,
    "cat token; stat -c '%a %F' link/file link",
    "echo m=4 >> solution.py; cat token",
    "cat token link/file solution.py",
)
TESTS = {"test_it.py": "import solution\ndef test_n(): assert solution.n == 3\n"}


def answer_of(flag: Path, kill_at: int):
    def answer(request) -> str:
        turn = len(bytes(token for token in request.prompt if token < 256).split(b"[exit code")) - 1
        if turn == kill_at and not flag.exists():
            flag.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        if turn >= len(COMMANDS):
            return "done"
        call = {"name": "shell", "arguments": {"command": COMMANDS[turn]}}
        return f"<tool_call>{json.dumps(call)}</tool_call>"

    return answer


async def finish(t, episodes) -> float:
    (episode,) = episodes
    action = episode.environment.scoring("python -m pytest -q", TESTS, keep=["solution.py"])
    return (await episode.step(action)).reward


async def main(path: str, sandbox: str, kill_at: int) -> None:
    flag = Path(path).with_suffix(".killed")

    def workspace(task) -> Workspace:
        return Workspace(sandbox=sandbox, env={"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"})

    agent = holdfast.AgentRolloutProcessor(environments=[workspace], finish=finish)
    journal = SqliteJournal(Path(path))
    local = LocalRun("a", policy=Oracle(answer_of(flag, kill_at)), journal=journal)
    await local.work(agent)
    (history,) = (await local._histories()).values()
    contents = [result.content for result in history.results.values()]
    await journal.close()
    count = len(local.policy.requests)
    print(json.dumps({"said": contents, "reward": history.reward, "asked": count}))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
