"""Chat APIs as they differ: where they are, and what they call the bound of a reply."""

import asyncio

import pytest

import holdfast
from holdfast.policy.client.replicas import EnginePolicy
from holdfast.policy.providers import base_url
from holdfast.records.errors import PolicyRefused
from holdfast.testing import FakeEngine


async def answer(t: holdfast.Rollout) -> None:
    t.add(*t.task.messages)
    await t.generate(max_tokens=7)


def statuses(policy: str, *, tasks: int = 1) -> list[str]:
    result = holdfast.run_sync(
        answer,
        tasks=[{"prompt": f"q{n}"} for n in range(tasks)],
        policy=policy,
        journal="memory:",
        settings={"concurrency": 1},
    )
    return [trajectory.status.name for trajectory in result.trajectories]


# --- where they are


@pytest.mark.parametrize(
    ("url", "canonical"),
    [
        ("http://h:1", "http://h:1"),
        ("http://h:1/", "http://h:1"),
        ("http://h:1/v1", "http://h:1"),
        ("http://h:1/v1/", "http://h:1"),
        ("https://h/v1beta/openai/", "https://h/v1beta/openai"),
        ("https://h/openai/v1", "https://h/openai/v1"),
        ("https://h/openai", "https://h/openai"),
    ],
)
def test_one_api_has_one_address(url: str, canonical: str) -> None:
    assert base_url(url) == canonical == base_url(canonical)


@pytest.mark.parametrize("base", ["/v1", "/v1beta/openai", "/openai/v1"])
def test_an_address_with_a_path_is_taken_as_it_is(base: str) -> None:
    with FakeEngine(dialect="chat", base=base, mean_length=0) as engine:
        assert statuses(engine.url + base) == ["TRUNCATED"]
        assert [call.path for call in engine.calls()] == [f"{base}/chat/completions"]


def test_an_address_without_a_path_stands_for_its_v1() -> None:
    with FakeEngine(dialect="chat") as engine:
        assert statuses(engine.url) != []
    with (
        FakeEngine(dialect="chat", base="/v1beta/openai") as engine,
        pytest.raises(PolicyRefused, match="404"),
    ):
        statuses(engine.url)


def test_what_belongs_to_a_server_is_beside_the_v1_of_its_address() -> None:
    async def version(url: str) -> str | None:
        async with EnginePolicy(url, "fake") as policy:
            await policy.check()
            return await policy.endpoints[0].version()

    with FakeEngine(version="v7") as engine:
        assert asyncio.run(version(engine.url)) == "v7"
        assert asyncio.run(version(engine.url + "/v1")) == "v7"


# --- the bound of a reply


def bounds(engine: FakeEngine) -> list[tuple[object, object]]:
    sent = [call.parameters for call in engine.calls()]
    return [(body.get("max_tokens"), body.get("max_completion_tokens")) for body in sent]


def test_a_server_that_wants_max_completion_tokens_is_asked_once_and_gets_it_from_then_on() -> None:
    with FakeEngine(dialect="chat", reasoning_model=True, mean_length=0) as engine:
        assert statuses(engine.url, tasks=3) == ["TRUNCATED"] * 3
        assert bounds(engine) == [(None, 7)] * 3
        assert engine.stats().requests == 4, "three replies and one refusal"


def test_a_server_that_takes_max_tokens_gets_nothing_else() -> None:
    with FakeEngine(dialect="chat", mean_length=0) as engine:
        assert statuses(engine.url, tasks=3) == ["TRUNCATED"] * 3
        assert bounds(engine) == [(7, None)] * 3
        assert engine.stats().requests == 3
