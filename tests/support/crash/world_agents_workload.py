"""The crash suite's black-box agents in containers. Each writes the replies that it got into files,
and its reward is a checksum of all its files.

`start…` begins anew in a new container, `latest…` finds its container as it was at the last call.
"""

import os

import holdfast

TURNS = 3
IMAGE = os.environ.get("HOLDFAST_WORLDS_PYTHON", "python:3")
AGENT = """
import json, os, pathlib, urllib.request

def ask(messages):
    body = json.dumps({"model": "m", "messages": messages, "max_tokens": 8}).encode()
    headers = {"Content-Type": "application/json",
               "Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
    url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
    with urllib.request.urlopen(urllib.request.Request(url, body, headers)) as answer:
        return json.load(answer)["choices"][0]["message"]["content"]

folder = pathlib.Path("/work")
folder.mkdir(exist_ok=True)
messages = json.loads(pathlib.Path(os.environ["HOLDFAST_TASK"]).read_text())["messages"]
kept = folder / "messages.json"
if kept.exists():
    messages = json.loads(kept.read_text())
while len(messages) < 1 + 2 * TURNS:
    reply = ask(messages)
    messages += [{"role": "assistant", "content": reply}, {"role": "user", "content": "more"}]
    (folder / f"{len(messages)}.txt").write_text(reply)
    kept.write_text(json.dumps(messages))
""".replace("TURNS", str(TURNS))
CHECKSUM = "cd /work && cat $(ls | sort) | cksum"


async def checksum(t, episodes) -> float:
    (episode,) = episodes
    return float((await episode.step(CHECKSUM)).text.split()[0])


def agent(restore: str) -> holdfast.BlackBoxRolloutProcessor:
    return holdfast.BlackBoxRolloutProcessor(
        ["python3", "-c", AGENT],
        world=holdfast.WorkspaceWorld(
            lambda task: holdfast.WorldEnvironment(f"docker:{IMAGE}"), restore=restore
        ),
        finish=checksum,
    )


class EitherAgent(holdfast.RolloutProcessor):
    async def setup(self) -> None:
        self._agents = {restore: agent(restore) for restore in ("start", "latest")}
        for each in self._agents.values():
            await each.setup()

    async def acleanup(self) -> None:
        for each in self._agents.values():
            await each.acleanup()

    async def rollout(self, t: holdfast.Rollout):
        return await self._agents[t.task.id.rstrip("0123456789")].rollout(t)


solve = EitherAgent()


def score(trajectory: holdfast.TrajectoryView) -> float | None:
    return trajectory.reward
