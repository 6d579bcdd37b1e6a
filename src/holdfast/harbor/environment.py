"""HarborEnvironment: the container of a Harbor task, with two actions of its own.

`SOLVE` runs the task's solution. `VERIFY` runs its tests, and the number that they write becomes
the action's reward. If they write no number, the environment is broken: a verifier that fails is no
outcome of the policy.
"""

import io
import json
import math
import os
import re
import shlex
import tarfile
from collections.abc import Mapping
from pathlib import Path

import msgspec

from holdfast.records.errors import EnvironmentBroken, UsageError
from holdfast.records.task import Task
from holdfast.rollout.episodes.environment import Observation
from holdfast.tasks.harbor import TASK, HarborTask
from holdfast.worlds.contract.world import ExecResult
from holdfast.worlds.running.environment import WorldEnvironment

SOLVE = "holdfast: run the solution"
VERIFY = "holdfast: run the tests"
LOGS = "/logs"
REWARDS = (f"{LOGS}/verifier/reward.json", f"{LOGS}/verifier/reward.txt")
"""The files that a verifier may write. The first one counts."""
SOLVE_SECONDS = 3600.0
"""The most seconds of a solution, if its task names no timeout for agents."""
_TEMPLATE = re.compile(r"\$\{([A-Za-z_]\w*)(?::-(.*))?\}")


def harbor_task(task: Task) -> HarborTask | None:
    """Returns the description of a Harbor task, or None for another task."""
    given = task.metadata.get(TASK)
    return None if given is None else msgspec.convert(given, HarborTask)


class HarborEnvironment(WorldEnvironment):
    """The container of a Harbor task."""

    def __init__(self, task: HarborTask):
        super().__init__()
        self._task = task
        self.env = resolved(task.env)
        self.agent_seconds = task.agent_seconds or math.inf
        longest = max(task.verifier_seconds, task.agent_seconds or SOLVE_SECONDS)
        self.timeout += longest

    async def reset(self, *, seed: int) -> Observation:
        seen = await super().reset(seed=seed)
        folders = " ".join(f"{LOGS}/{name}" for name in ("agent", "verifier", "artifacts"))
        await self._as_root(f"mkdir -p {folders} && chmod 777 {LOGS} {folders}")
        return seen

    async def step(self, action: str) -> Observation:
        match action:
            case str() if action == SOLVE:
                return await self._solve()
            case str() if action == VERIFY:
                return await self._verify()
        return await super().step(action)

    async def _solve(self) -> Observation:
        task = self._task
        seconds = task.agent_seconds or SOLVE_SECONDS
        result = await self._run(
            "solution/solve.sh", env=task.solution_env, seconds=seconds, user=""
        )
        return Observation(result.output, info={"exit_code": result.exit_code})

    async def _verify(self) -> Observation:
        task = self._task
        await self._as_root(f"rm -rf /tests {LOGS}/verifier/*")
        result = await self._run(
            "tests/test.sh",
            env=task.verifier_env,
            seconds=task.verifier_seconds,
            user=task.verifier_user,
        )
        if result.timed_out:
            raise EnvironmentBroken(
                f"the verifier was not done within {task.verifier_seconds:g} s: "
                f"{result.output[-500:]}"
            )
        reward = await self._reward(result)
        return Observation(result.output, reward=reward, info={"exit_code": result.exit_code})

    async def _run(
        self, script: str, *, env: Mapping[str, str], seconds: float, user: str
    ) -> ExecResult:
        """Copies a script's folder into the container, and runs the script there."""
        folder, _, name = script.partition("/")
        source = Path(self._task.folder) / folder
        if not (source / name).is_file():
            raise UsageError(f"Harbor task {self._task.folder} has no {script}")
        archive, path = _packed(source), f"/{folder}.tar"
        await self.world.write(path, archive)
        unpack = f"mkdir -p /{folder} && tar -xf {path} -C /{folder} && rm {path}"
        await self._as_root(f"{unpack} && chmod +x {shlex.quote(f'/{script}')}")
        return await self.world.exec(
            f"/{script}", timeout=seconds, env=resolved(env), user=user, output=self._output
        )

    async def _as_root(self, command: str) -> None:
        result = await self.world.exec(command, user="0")
        if not result.ok:
            raise EnvironmentBroken(f"the container of a Harbor task failed: {result.output}")

    async def _reward(self, result: ExecResult) -> float:
        for path in REWARDS:
            try:
                text = (await self.world.read(path)).decode("utf-8", "replace")
            except FileNotFoundError:
                continue
            return parse_reward(text, path)
        raise EnvironmentBroken(
            f"the verifier wrote no reward: {REWARDS[1]} is missing; it ended with exit code "
            f"{result.exit_code}: {result.output[-500:]}"
        )


def parse_reward(text: str, path: str) -> float:
    """Returns the number in a verifier's file. In a JSON object, this is the value of `reward`, or
    else of the only member. Raises `EnvironmentBroken` if there is none."""
    try:
        value = json.loads(text) if path.endswith(".json") else float(text)
    except ValueError:
        value = None
    if isinstance(value, dict):
        value = value.get("reward", *(value.values() if len(value) == 1 else ()))
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise EnvironmentBroken(f"the verifier wrote no number into {path}: {text[:200]!r}")
    return float(value)


def resolved(env: Mapping[str, str]) -> dict[str, str]:
    """Replaces values such as `${NAME:-default}` by this machine's variables."""
    values: dict[str, str] = {}
    for name, value in env.items():
        match = _TEMPLATE.fullmatch(value)
        given = value if match is None else os.environ.get(match[1], match[2])
        if given is None:
            raise UsageError(f"the Harbor task needs the environment variable {match and match[1]}")
        values[name] = given
    return values


def _packed(folder: Path) -> bytes:
    body = io.BytesIO()
    with tarfile.open(fileobj=body, mode="w") as archive:
        archive.add(folder, arcname=".", filter=_owned_by_root)
    return body.getvalue()


def _owned_by_root(info: tarfile.TarInfo) -> tarfile.TarInfo:
    info.uid = info.gid = 0
    info.uname = info.gname = "root"
    return info
