"""Every engine samples alike: what goes in, what comes out, and where it ends."""

import asyncio

import msgspec
import pytest

from holdfast.policy.client.replicas import EnginePolicy, only_model
from holdfast.policy.dialects import DIALECTS
from holdfast.policy.dialects.dialect import Kind, one_try
from holdfast.policy.policy import Completion, Request
from holdfast.records.errors import ContextOverflow, PolicyRefused
from holdfast.records.sampling import Sampling
from support.conformance.engines import LONGEST, NOISE, WILD, Engine
from support.conformance.samples import (
    MANY,
    assert_well_formed,
    drawn,
    drawn_together,
    ids,
    is_plain,
    logprobs,
    plain_text,
    policy_for,
    request,
    streamed,
    tokens_until,
)

CLOSE = 1e-5
"""How far a logprob may be off when other requests are in the batch."""


def same(completion: Completion, other: Completion, *, within: float = 0.0) -> bool:
    return ids(completion) == ids(other) and logprobs(completion) == pytest.approx(
        logprobs(other), abs=within, rel=0
    )


# --- finding out what it is


def test_what_it_is_and_what_it_serves_is_found_out(engine: Engine) -> None:
    async def main() -> EnginePolicy:
        async with policy_for(engine) as policy:
            return policy

    assert asyncio.run(only_model(engine.server.url)) == engine.server.model
    endpoint = asyncio.run(main()).endpoints[0]
    assert endpoint.dialect.kind is engine.dialect
    assert endpoint.described.max_model_len == LONGEST
    assert (endpoint.described.seeds == "position") is engine.can.seeds_by_position


async def test_a_model_that_it_does_not_serve_is_refused_with_those_that_it_does(
    engine: Engine,
) -> None:
    if engine.dialect == "sglang":
        pytest.skip("its requests name no model")
    policy = EnginePolicy(engine.server.url, "gpt-none", dialect=engine.named)
    try:
        with pytest.raises(PolicyRefused) as refused:
            await policy.check()
        assert "'gpt-none'" in str(refused.value)
        assert f"serves: {engine.server.model}" in str(refused.value)
        with pytest.raises(PolicyRefused, match="gpt-none"):
            await policy.sample(request(engine))
    finally:
        await policy.aclose()


# --- tokens


def test_every_token_has_a_finite_logprob(engine: Engine) -> None:
    requests = [request(engine, seed) for seed in range(3)]
    for completion in drawn(engine, *requests):
        assert_well_formed(completion, max_tokens=24)
        assert completion.model == engine.server.model
        assert (completion.tries, completion.seams) == (1, ())


def test_a_seed_repeats_its_tokens_and_another_draws_others(engine: Engine) -> None:
    body = request(engine, 11, prompt=NOISE, temperature=WILD)
    first, again, other = drawn(engine, body, body, msgspec.structs.replace(body, seed=12))
    assert same(first, again)
    assert ids(first) != ids(other)


def test_without_a_seed_no_two_are_alike(engine: Engine) -> None:
    body = request(engine, None, prompt=NOISE, temperature=WILD)
    assert len({tuple(ids(item)) for item in drawn(engine, body, body, body)}) == 3


def test_many_at_once_are_those_of_one_at_a_time(engine: Engine) -> None:
    requests = [
        request(engine, seed, max_tokens=8, prompt=engine.prompt(f"{seed} + {seed * 7} = ?"))
        for seed in range(MANY)
    ]
    together = drawn_together(engine, *requests)
    for alone, beside in zip(drawn(engine, *requests), together, strict=True):
        assert same(alone, beside, within=CLOSE)
    assert len({tuple(ids(item)) for item in together}) > MANY // 4


def test_a_stream_is_the_whole_reply(engine: Engine) -> None:
    requests = [request(engine, seed, max_tokens=32) for seed in range(2)]
    whole = drawn(engine, *requests)
    for item, other in zip(drawn(engine, *map(streamed, requests)), whole, strict=True):
        assert same(item, other, within=CLOSE)
        assert (item.finish_reason, item.versions) == (other.finish_reason, other.versions)


def test_nothing_narrows_the_distribution_that_nobody_asked_for(engine: Engine) -> None:
    """Models bring top_k and the like in their generation_config.json, and engines heed it."""
    requests = [
        request(engine, seed, prompt=NOISE, max_tokens=1, temperature=WILD) for seed in range(MANY)
    ]
    results = {ids(completion)[0] for completion in drawn_together(engine, *requests)}
    assert len(results) > MANY // 3


def test_a_request_names_what_vllm_would_else_take_from_the_model() -> None:
    query = Request(NOISE, Sampling(8), 1, "r")
    body = DIALECTS[Kind.VLLM].body(one_try(query, "m", max_tokens=8))
    neutral = {"top_p": 1.0, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}
    assert {name: body[name] for name in neutral} == neutral


# --- where it ends


def test_max_tokens_ends_it(engine: Engine) -> None:
    for tokens in (1, 5):
        (completion,) = drawn(engine, request(engine, max_tokens=tokens))
        assert_well_formed(completion, max_tokens=tokens)
        assert (len(ids(completion)), completion.finish_reason) == (tokens, "length")


def test_a_stop_token_ends_it_and_belongs_to_it(engine: Engine) -> None:
    if not engine.can.takes_stop_ids:
        pytest.skip("it takes no stop token ids")
    body = request(engine, 3, max_tokens=32, temperature=WILD)
    (free,) = drawn(engine, body)
    tokens = ids(free)
    stop = tokens[len(tokens) // 2]
    expected = tokens[: tokens.index(stop) + 1]
    stopping = msgspec.structs.replace(body, stop_token_ids=(stop,))
    for completion in drawn(engine, stopping, streamed(stopping)):
        assert ids(completion) == expected
        assert logprobs(completion) == pytest.approx(
            logprobs(free)[: len(expected)], abs=CLOSE, rel=0
        )
        assert completion.finish_reason == "stop"


def test_a_stop_string_ends_it_with_the_token_that_completes_it(engine: Engine) -> None:
    body = request(engine, 5, max_tokens=32)
    (free,) = drawn(engine, body)
    tokens = ids(free)
    stop = _stop_string(plain_text(engine, tokens))
    length = tokens_until(engine, stop, tokens)
    assert length < len(tokens)
    stopping = msgspec.structs.replace(
        body, sampling=msgspec.structs.replace(body.sampling, stop=(stop,))
    )
    for completion in drawn(engine, stopping, streamed(stopping)):
        assert ids(completion) == tokens[:length]
        assert completion.finish_reason == "stop"


def _stop_string(text: str) -> str:
    """Three characters of plain text from the middle of it."""
    middle = len(text) // 2
    candidates = (text[at : at + 3] for at in (*range(middle, len(text) - 4), *range(1, middle)))
    return next(candidate for candidate in candidates if is_plain(candidate))


def test_a_prompt_that_is_too_long_is_an_overflow(engine: Engine) -> None:
    body = request(engine, prompt=engine.long_prompt(LONGEST + 1))
    with pytest.raises(ContextOverflow):
        drawn(engine, body)


async def test_an_engine_that_nobody_asked_for_its_limit_says_itself_that_it_is_exceeded(
    engine: Engine,
) -> None:
    async with policy_for(engine) as policy:
        policy.endpoints[0].described.max_model_len = None
        for body in _too_long(engine):
            with pytest.raises(ContextOverflow):
                await policy.sample(body)


def _too_long(engine: Engine) -> list[Request]:
    body = request(engine, prompt=engine.long_prompt(LONGEST + 1), max_tokens=8)
    return [body, streamed(body)]


def test_what_does_not_fit_behind_the_prompt_is_left_out(engine: Engine) -> None:
    body = request(engine, prompt=engine.long_prompt(LONGEST - 6), max_tokens=50)
    for completion in drawn(engine, body, streamed(body)):
        assert_well_formed(completion, max_tokens=6)
