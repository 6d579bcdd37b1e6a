"""OpenEnv: its own client against its own server, in a process that can be killed.

openenv is imported in the tests, not for all of the suite: it takes seconds.
"""

import asyncio
import json
from collections.abc import Iterator

import pytest

from holdfast.records.errors import EnvironmentBroken, Rewound, ToolSaysNo, UsageError
from holdfast.records.history import CAME_BACK_DIFFERENT
from holdfast.rollout.processors.agent import EnvironmentRolloutProcessor
from support.engine.local_run import LocalRun
from support.environments.gym_games import Dropped, attempt, player
from support.environments.openenv_games import SESSIONS, Host, Server, guesser
from support.rollout.stage import TrajectoryUnderTest


@pytest.fixture(scope="module")
def host() -> Iterator[Host]:
    host = Host()
    import holdfast.environments.openenv  # noqa: F401 (while the host does the same)

    yield host
    host.close()


@pytest.fixture(scope="module")
def shared(host: Host) -> Server:
    return host.serve()


@pytest.fixture
def server(host: Host) -> Iterator[Server]:
    server = host.serve()
    yield server
    server.kill()


def openenv(*args: object, **options: object):
    from holdfast.environments import OpenEnvEnvironment

    return OpenEnvEnvironment(*args, **options)


def guess(number: object) -> str:
    return json.dumps({"number": number})


async def test_actions_and_observations_are_json_by_default(shared):
    environment = openenv(shared.url, instructions='Say {"number": …}.')
    first = await environment.reset(seed=7)
    seen = [await environment.step(guess(number)) for number in range(100)]
    await environment.close()
    assert first.text == '{"hint":"up to 99","tries":0}\n\nSay {"number": …}.'
    assert (first.reward, first.done) == (0.0, False), "no reward is none"
    (hit,) = [item for item in seen if item.done]
    assert (json.loads(hit.text)["hint"], hit.reward) == ("yes", 1.0)
    assert {item.reward for item in seen if not item.done} == {0.0}


def test_a_typed_client_reads_and_shows_what_it_is_told_to(shared):
    from support.environments.openenv_client import Guess, GuessClient

    def environment(client):
        return openenv(
            shared.url,
            client=client,
            action=lambda reply: Guess(number=reply),
            observe=lambda hint: f"{hint.hint}, after {hint.tries}",
        )

    async def scenario(client):
        item = environment(client)
        texts = [(await item.reset(seed=7)).text, (await item.step("-5")).text]
        with pytest.raises(ToolSaysNo, match="unable to parse string as an integer"):
            await item.step("many")
        await item.close()
        return texts

    for client in (GuessClient, lambda base_url: GuessClient(base_url).sync()):
        assert asyncio.run(scenario(client)) == ["up to 99, after 0", "higher, after 1"]


async def test_a_typed_observation_is_json_by_default(shared):
    from support.environments.openenv_client import GuessClient, typed

    environment = openenv(shared.url, client=GuessClient, action=typed)
    await environment.reset(seed=7)
    seen = await environment.step("-5")
    await environment.close()
    assert (seen.text) == '{"hint":"higher","tries":1}'


@pytest.mark.parametrize("reply", ["no idea", guess("many"), '{"letter": 3}'])
async def test_a_refused_action_is_told_and_the_session_goes_on(shared, reply):
    environment = openenv(shared.url)
    await environment.reset(seed=7)
    with pytest.raises(ToolSaysNo, match="Nothing happened"):
        await environment.step(reply)
    seen = await environment.step(guess(-5))
    await environment.close()
    assert json.loads(seen.text)["tries"] == 1


async def test_an_exception_in_the_server_breaks_the_environment(shared):
    environment = openenv(shared.url)
    await environment.reset(seed=7)
    with pytest.raises(RuntimeError, match="the dice are lost"):
        await environment.step(guess(-1))
    with pytest.raises(EnvironmentBroken, match="no session"):
        await environment.step(guess(1))
    await environment.close()


async def test_a_late_answer_is_never_taken_for_the_next_one(shared):
    environment = openenv(shared.url, timeout=3.0)
    await environment.reset(seed=7)
    with pytest.raises(TimeoutError):
        await environment.step(guess(-2))
    with pytest.raises(EnvironmentBroken, match="no session"):
        await environment.step(guess(1))
    await environment.close()


async def test_a_full_server_is_waited_for(server):
    holders = [openenv(server.url) for _ in range(SESSIONS)]
    for holder in holders:
        await holder.reset(seed=1)
    late = openenv(server.url)
    waiting = asyncio.create_task(late.reset(seed=1))
    impatient = openenv(server.url, patience=0.3)
    with pytest.raises(EnvironmentBroken, match=f"no session at {server.url}"):
        await impatient.reset(seed=1)
    assert not waiting.done()
    await holders[0].close()
    seen = await waiting
    for item in (*holders, late, impatient):
        await item.close()
    assert json.loads(seen.text)["tries"] == 0


def test_a_server_that_is_not_there_breaks_the_environment(server):
    server.kill()

    async def scenario():
        environment = openenv(server.url, patience=0.2)
        try:
            await environment.reset(seed=1)
        finally:
            await environment.close()

    with pytest.raises(EnvironmentBroken, match=r"within 0\.2 s"):
        asyncio.run(scenario())


def played(url: str, policy, **options) -> LocalRun:
    local = LocalRun(policy=policy)
    local.run(EnvironmentRolloutProcessor(lambda task: openenv(url, **options)))
    return local


def steps_of(local: LocalRun) -> list[tuple[object, ...]]:
    steps = local.history().environment_steps
    return [(step.action, step.observation, step.reward, step.done) for step in steps]


def test_an_episode_is_played_to_its_end(shared):
    local = played(shared.url, guesser())
    assert local.statuses() == {"a/0": ("COMPLETED", True)}
    assert local.history().finished.reward == 1.0
    assert len(steps_of(local)) > 3


@pytest.mark.parametrize("recovery", ["replay", "restart"])
def test_a_server_that_is_killed_in_an_episode_comes_back(shared, server, recovery):
    kills = []

    def kill(tries: int) -> None:
        if tries == 2 and not kills:
            kills.append(server.pid)
            server.kill()
            server.start_again()

    undisturbed = played(shared.url, guesser(), recovery=recovery)
    policy = guesser(kill)
    local = played(server.url, policy, recovery=recovery)
    assert len(kills) == 1
    assert local.statuses() == {"a/0": ("COMPLETED", True)}
    assert steps_of(local) == steps_of(undisturbed)
    history = local.history()
    (failure,) = history.failures
    assert (failure.cause, "ConnectionClosed" in failure.message) == ("environment", True)
    again = len(policy.request_ids) - len(undisturbed.policy.request_ids)
    assert (again, len(history.forks)) == ((0, 0) if recovery == "replay" else (3, 1))


async def test_without_a_state_it_is_only_reset(shared):
    subject = TrajectoryUnderTest(guesser())
    stateless = openenv(shared.url, recovery="stateless")
    with pytest.raises(Dropped):
        await attempt(subject, player(lambda: stateless, dropped_after=2))
    tries = []

    async def once_more(t):
        episode = await t.env(openenv(shared.url, recovery="stateless"))
        t.add(episode.observation)
        for _ in range(3):
            reply = await t.generate()
            seen = await episode.step(reply.text)
            t.add(seen)
            tries.append(json.loads(seen.text)["tries"])

    await attempt(subject, once_more)
    assert (tries) == [1, 2, 1]


def test_a_server_that_ignores_its_seed_is_noticed(shared):
    def make():
        return openenv(shared.url, reset_with={"unseeded": True})

    async def dropped() -> TrajectoryUnderTest:
        """A first guess may be right, and then there is nothing to come back to."""
        for _ in range(50):
            subject = TrajectoryUnderTest(guesser())
            try:
                await attempt(subject, player(make, dropped_after=1))
            except Dropped:
                return subject
        raise AssertionError("every first guess was right")

    async def scenario() -> str:
        for _ in range(50):
            try:
                # The same number may be drawn twice.
                await attempt(await dropped(), player(make))
            except Rewound as rewound:
                return str(rewound)
        return "it was never noticed"

    assert CAME_BACK_DIFFERENT in asyncio.run(scenario())


def test_its_identity_is_not_its_address():
    from support.environments.openenv_client import GuessClient, typed

    first, moved = openenv("http://a"), openenv("http://b")
    assert first.identity == moved.identity
    others = [
        openenv("http://a", client=GuessClient),
        openenv("http://a", action=typed),
        openenv("http://a", instructions="x"),
        openenv("http://a", reset_with={"task": 3}),
    ]
    assert len({first.identity, *(other.identity for other in others)}) == 5


def test_what_it_cannot_do_is_refused():
    with pytest.raises(UsageError, match="no snapshots"):
        openenv("http://127.0.0.1:1", recovery="snapshot")
    with pytest.raises(UsageError, match="not an OpenEnv client"):
        asyncio.run(openenv("http://127.0.0.1:1", client=dict).reset(seed=1))
