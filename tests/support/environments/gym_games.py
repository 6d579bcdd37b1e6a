"""Games for the tests of gymnasium environments, and policies that play them."""

import json

import gymnasium
from gymnasium import spaces

from holdfast.environments.gym.environment import GymEnvironment
from holdfast.policy.rendering.renderer import ByteRenderer
from holdfast.rollout.context import Rollout
from support.rollout.stage import Oracle, TrajectoryUnderTest

MOVES = {"left": 0, "down": 1, "right": 2, "up": 3}
WAY = {0: "down", 4: "down", 8: "right", 9: "right", 10: "down", 14: "right"}
"""From each cell on the way of the 4 × 4 lake to the next."""


def lake(**options) -> GymEnvironment:
    return GymEnvironment("FrozenLake-v1", actions=MOVES, **{"is_slippery": False, **options})


def cell(text: str) -> int:
    """Where a rendered lake shows the agent."""
    rows = [row for row in text.split("\n") if set(row) <= set("SFHG[]") and row]
    (at,) = [(y, row.index("[")) for y, row in enumerate(rows) if "[" in row]
    return 4 * at[0] + at[1]


def last_seen(request) -> str:
    """The last message before the reply."""
    prompt = list(request.prompt)
    del prompt[len(prompt) - 1 - prompt[::-1].index(ByteRenderer.OPEN) :]
    start = len(prompt) - prompt[::-1].index(ByteRenderer.OPEN)
    return bytes(token for token in prompt[start:] if token < 256).decode().split("\n", 1)[1]


def next_move(text: str) -> str:
    """The way from where the lake shows the agent; astray, to the right."""
    return WAY.get(cell(text), "right")


def steer(request) -> str:
    return f"I think of left and up.\n{next_move(last_seen(request))}"


def walker() -> Oracle:
    return Oracle(steer)


async def attempt(subject: TrajectoryUnderTest, rollout, **options) -> object:
    """One performance, its environments closed at the end as the engine would."""
    session = await subject.session(**options)
    try:
        return await rollout(Rollout(session))
    finally:
        await session.episodes.close()


def player(make, *, dropped_after: int = -1, seen=None):
    """A rollout that plays until the episode is over, or is dropped after some steps."""

    async def rollout(t) -> None:
        episode = await t.env(make())
        t.add(episode.observation)
        while not episode.over:
            if len(episode.rewards) == dropped_after:
                raise Dropped
            reply = await t.generate()
            t.add(await episode.step(reply.text))
        if seen is not None:
            seen.extend(message.text for message in t.messages)

    return rollout


def keep(env: gymnasium.Env) -> bytes:
    """All that a lake is: where the agent stands, and the generator."""
    lake = env.unwrapped
    return json.dumps([int(lake.s), lake.np_random.bit_generator.state]).encode()


def put_back(env: gymnasium.Env, state: bytes) -> None:
    lake = env.unwrapped
    lake.s, lake.np_random.bit_generator.state = json.loads(state)


class Dropped(Exception):
    """The attempt ends here, as far as a test is concerned."""


class Counting(gymnasium.Env):
    """Counts up to four. Its trouble is turned on by the test, and shared by all instances."""

    action_space = spaces.Discrete(2)
    observation_space = spaces.Discrete(100)

    def __init__(self, trouble: "Trouble"):
        self.trouble = trouble
        self.count = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.trouble.at("reset")
        self.count = 0
        return self._seen(), {}

    def step(self, action):
        self.trouble.at("step")
        self.count += 1
        return self._seen(), 0.25, self.count == 4, False, {}

    def close(self):
        self.trouble.at("close")

    def _seen(self) -> int:
        return self.count + self.trouble.drift()


class Trouble:
    def __init__(self, where: str = "", *, times: int = 0, is_unseeded: bool = False):
        self.where, self.times, self.is_unseeded = where, times, is_unseeded
        self.calls = {"reset": 0, "step": 0, "close": 0}
        self._drifted = 0

    def drift(self) -> int:
        """Never twice the same, in the few calls of a test."""
        if self.is_unseeded:
            self._drifted = (self._drifted + 7) % 90
        return self._drifted

    def at(self, where: str) -> None:
        self.calls[where] += 1
        if where == self.where and self.times:
            self.times -= 1
            raise OSError(f"no {where} today")

    def environment(self, **options) -> GymEnvironment:
        return GymEnvironment(Counting, trouble=self, **options)
