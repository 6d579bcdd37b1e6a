"""What an engine refuses for all replies of a run is refused before the run is recorded."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

import holdfast
from holdfast.embedded.child_process import EmbeddedEngine
from holdfast.journal.sqlite.journal import MemoryJournal
from holdfast.policy.dialects import DIALECTS
from holdfast.policy.dialects.dialect import Kind
from holdfast.records.errors import Unsupported
from holdfast.records.sampling import Sampling
from holdfast.testing import FakeEngine
from support.policy.answers import models
from support.policy.canned_server import Answer, Canned
from support.policy.clients import policy_at


@pytest.fixture(scope="module")
def embedded() -> Iterator[EmbeddedEngine]:
    engine = EmbeddedEngine(None)
    engine.start()
    yield engine
    engine.stop()


async def say(t: holdfast.Rollout) -> None:
    t.add(*t.task.messages)
    await t.generate()


def refused(url: str, **sampling: Any) -> Unsupported:
    """What a run with this sampling raises; nothing is recorded of it."""
    journal = MemoryJournal()

    async def begin() -> None:
        await holdfast.run(
            say, tasks=["hi"], policy=url, journal=journal, sampling={"max_tokens": 8, **sampling}
        )

    with pytest.raises(Unsupported) as caught:
        asyncio.run(begin())
    assert asyncio.run(journal.runs()) == []
    return caught.value


@pytest.mark.parametrize(
    ("sampling", "says"),
    [
        ({"extra_body": {"min_tokens": 5}}, "min_tokens is not supported"),
        ({"extra_body": {"sampling_params": {"min_tokens": 5}}}, "sampling_params.min_tokens"),
        ({"logit_bias": {99999: 3}}, "Token id 99999 is out of vocabulary"),
        ({"stop_token_ids": (3, 99999), "logit_bias": {5: 1}}, "Token id 99999 is out of"),
    ],
)
def test_the_embedded_engine_refuses_before_the_run_is_recorded(
    embedded: EmbeddedEngine, sampling: dict[str, object], says: str
) -> None:
    error, name = refused(embedded.url, **sampling), next(iter(sampling))
    assert error.what == name
    assert str(error).startswith(f"{name} is refused by the embedded engine: ")
    assert says in str(error)
    assert "\n" not in str(error)


def test_what_the_embedded_engine_takes_is_sampled(embedded: EmbeddedEngine) -> None:
    sampling = {"max_tokens": 4, "extra_body": {"cache_salt": "x"}, "stop_token_ids": (3,)}
    result = holdfast.run_sync(
        say, tasks=["hi"], policy=embedded.url, journal="memory:", sampling=sampling
    )
    assert result.report.permanent_failures == 0


async def test_another_engine_is_asked_and_named() -> None:
    async with Canned() as server:
        server.always("/v1/models", models(owned_by="vllm"))
        refusal = {"error": {"message": "a bias of token 9\nis out of range"}}
        server.always(DIALECTS[Kind.VLLM_GENERATE].path, Answer(400, refusal))
        async with policy_at(server, kind=None) as policy:
            await policy.check()
            with pytest.raises(Unsupported) as caught:
                await policy.check_taken(Sampling(logit_bias={9: 1}))
            await policy.check_taken(Sampling(temperature=0.5))
    where = policy.endpoints[0].name
    assert str(caught.value) == (
        f"logit_bias is refused by {where}: it answered 400: a bias of token 9 is out of "
        "range; change it, or leave it out"
    )
    assert where not in caught.value.why, "that is for agents"


def test_an_engine_that_takes_it_is_asked_once_for_each_parameter() -> None:
    async def main(url: str, model: str) -> None:
        async with holdfast.EnginePolicy(url, model) as policy:
            await policy.check()
            engine.reset()
            await policy.check_taken(Sampling(4, logit_bias={5: 1}, extra_body={"x": 1}))

    with FakeEngine() as engine:
        asyncio.run(main(engine.url, engine.model))
        requests = [call.parameters for call in engine.calls()]
    assert [("logit_bias" in each, "x" in each) for each in requests] == [
        (False, True),
        (True, False),
    ]
