"""Every engine: which weights sampled which tokens, as the engine tells or as we know."""

import asyncio
from collections.abc import Iterator

import pytest

from holdfast.policy.policy import Completion, Draft, Request
from holdfast.records.encoding.tokens import count
from holdfast.records.step import VersionSource
from support.conformance.engines import FIRST, Engine
from support.conformance.interruptions import SOON, TooLate, in_time, interrupted
from support.conformance.samples import (
    assert_well_formed,
    drawn,
    long_request,
    policy_for,
    request,
    streamed,
)
from support.policy.recorded import record_weights


@pytest.fixture
def steady(engine: Engine) -> Iterator[Engine]:
    """It has its first weights, and has them again afterwards."""
    engine.server.switch_weights(FIRST)
    yield engine
    engine.server.switch_weights(FIRST)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_each_token_has_the_version_that_its_engine_tells(steady: Engine, *, stream: bool) -> None:
    body = request(steady)
    (before,) = drawn(steady, streamed(body) if stream else body)
    steady.server.switch_weights("step-7")
    (completion,) = drawn(steady, streamed(body) if stream else body)
    if not steady.can.tells_versions:
        assert [span.source for span in completion.versions] == [VersionSource.UNKNOWN]
        return
    assert [(version.version, version.source) for version in before.versions] == [
        (FIRST, VersionSource.ENGINE)
    ]
    assert [(version.version, version.source) for version in completion.versions] == [
        ("step-7", VersionSource.ENGINE)
    ]


def test_a_switch_in_mid_stream_splits_the_completion(steady: Engine) -> None:
    if not steady.can.tells_versions:
        pytest.skip("it does not tell versions")
    body, _ = long_request(steady, steady.long)
    completion = in_time(lambda: _switched(steady, body))
    assert_well_formed(completion, max_tokens=steady.long)
    first, second = completion.versions
    assert (first.version, second.version) == (FIRST, "step-8")
    assert SOON <= first.end < steady.long
    assert {first.source, second.source} == {VersionSource.ENGINE}


def _switched(engine: Engine, body: Request) -> Completion:
    engine.server.switch_weights(FIRST)
    completion = interrupted(engine, body, lambda: engine.server.switch_weights("step-8"))
    if len(completion.versions) == 1:
        raise TooLate
    return completion


def test_a_switch_that_only_we_know_of_splits_a_stream_where_it_was_told(steady: Engine) -> None:
    """From an engine that tells nothing, the acknowledged version is taken, and marked so."""
    if steady.can.tells_versions:
        pytest.skip("it tells versions itself")
    body, _ = long_request(steady, steady.long)

    async def main() -> Completion:
        async with policy_for(steady) as policy:
            await record_weights(policy, "step-1")

            async def saw(draft: Draft) -> None:
                if draft.start + count(draft.ids) >= SOON:
                    await record_weights(policy, "step-2")

            return await policy.sample(streamed(body, saw))

    first, second = asyncio.run(main()).versions
    assert (first.version, second.version) == ("step-1", "step-2")
    assert {first.source, second.source} == {VersionSource.ASSUMED}
    assert first.end >= SOON
