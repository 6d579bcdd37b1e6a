"""Replicas of one model serve one model: their numbers tell, whatever its name is."""

import asyncio
from typing import Any

import pytest

import holdfast
from holdfast.policy.client import circuit_breaker
from holdfast.policy.client.logprobs_probe import LENGTHS, MOST, SEQUENCE, Likeness, why_different
from holdfast.policy.client.replicas import EnginePolicy
from holdfast.records.errors import UsageError
from holdfast.testing import FakeEngine
from holdfast.testing.fake_engine.options import Dialect
from support.policy.fake_engines import QUICK, request, until


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(circuit_breaker, "PROBE_BASE_SECONDS", 0.005)
    monkeypatch.setattr(circuit_breaker, "PROBE_MAX_SECONDS", 0.02)


def check(*engines: FakeEngine, **options: Any) -> None:
    async def main() -> None:
        urls = [engine.url for engine in engines]
        async with EnginePolicy(urls, "fake", retry=QUICK, **options) as policy:
            await policy.check()

    asyncio.run(main())


@pytest.mark.parametrize("dialect", ["vllm", "vllm-scale-out", "sglang"])
def test_two_models_under_one_name_are_refused_by_the_names_of_both_replicas(
    dialect: Dialect,
) -> None:
    same, engine = FakeEngine(dialect=dialect), FakeEngine(dialect=dialect)
    with same, engine, FakeEngine(dialect=dialect, version="another") as other:
        check(same, engine)
        with pytest.raises(UsageError) as refused:
            check(same, engine, other)
    text = str(refused.value)
    assert text.startswith(f"the replicas differ: {other.url}: its 'fake' is another model than")
    assert f"that of {same.url}: after the same 16 prompts" in text
    assert "\n" not in text


def test_a_run_with_such_replicas_begins_not_at_all() -> None:
    async def never(t: holdfast.Rollout) -> None:
        raise AssertionError

    with (
        FakeEngine() as engine,
        FakeEngine(version="another") as other,
        pytest.raises(UsageError, match="is another model than that of"),
    ):
        holdfast.run_sync(
            never, tasks=[{"prompt": "q"}], policy=[engine.url, other.url], journal="memory:"
        )


def test_replicas_that_a_training_gives_their_weights_are_not_compared() -> None:
    with FakeEngine() as engine, FakeEngine(version="another") as other:
        check(engine, other, is_trained=True)


def test_a_replica_that_comes_back_with_another_model_gets_no_calls() -> None:
    async def main(engine: FakeEngine, before: FakeEngine) -> None:
        lines: list[str] = []
        urls = [engine.url, before.url]
        async with EnginePolicy(urls, "fake", retry=QUICK, notify=lines.append) as policy:
            await policy.check()
            back = policy.endpoints[1]
            port = int(before.url.rpartition(":")[2])
            before.kill()
            with FakeEngine(version="another", port=port) as after:
                back.breaker.trip()
                await until(lambda: any("is another model than" in line for line in lines))
                after.reset()
                await asyncio.gather(*(policy.sample(request(f"r{n}")) for n in range(8)))
                # Only probes, of one token each, came here.
                assert all(call.max_tokens == 1 for call in after.calls())
                assert not back.breaker.is_passing

    with FakeEngine() as first, FakeEngine() as before:
        asyncio.run(main(first, before))


@pytest.mark.parametrize(
    ("item", "other", "is_same"),
    [
        (((5, -1.0), (6, -2.0)), ((5, -1.0 - MOST / 2), (6, -2.0)), True),
        (((5, -1.0), (6, -2.0)), ((5, -1.0), (7, -2.0)), True),
        (((5, -1.0), (6, -2.0)), ((5, -1.0), (6, -2.1 - MOST)), False),
        (((5, -1.0), (6, -2.0)), ((8, -1.0), (7, -2.0)), False),
        ((), ((5, -5.0),), True),
    ],
    ids=["data types", "two tokens alike", "other numbers", "untrained models", "nobody knows"],
)
def test_what_data_types_explain_is_the_same_model(
    item: Likeness, other: Likeness, is_same: bool
) -> None:
    assert (why_different(item, other) is None) is is_same


def test_every_vocabulary_has_the_prompts() -> None:
    assert len(SEQUENCE) == LENGTHS[-1]
    assert 0 < min(SEQUENCE) < max(SEQUENCE) < 100
