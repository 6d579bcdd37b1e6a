"""A completion that is interrupted goes on from its tokens, and is one completion in the end."""

import asyncio
import hashlib
from typing import Any

import pytest

from holdfast.policy.client import call as calls
from holdfast.policy.dialects.dialect import Kind
from holdfast.policy.retry import RetryPolicy
from holdfast.records.errors import EngineUnavailable
from holdfast.records.step import VersionSource, VersionSpan
from support.policy.answers import (
    PATHS,
    PROMPT,
    TOKEN_KINDS,
    answer_body,
    events,
    logprobs_of,
    max_tokens_of,
    models,
    plain,
    prompt_of_body,
    request,
    streamed,
)
from support.policy.canned_server import DONE, Answer, Canned, Pause, forever, sse
from support.policy.clients import QUICK, ids, logprobs, policy_at, run, sample, until
from support.policy.drafts import Kept, draft_of
from support.policy.recorded import record_weights

VLLM = Kind.VLLM


def derived(seed: int, at: int) -> int:
    digest = hashlib.blake2b(f"{seed}\0{at}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


# --- answers in one piece


@pytest.mark.parametrize("kind", TOKEN_KINDS)
def test_an_aborted_answer_is_gone_on_from_all_its_tokens(kind: Kind) -> None:
    aborted = plain(kind, [40, 41, 42], finish="abort")
    rest, query = plain(kind, [43, 44], finish="length"), request(seed=None)
    completion, bodies = sample(aborted, rest, body=query, kind=kind)
    assert [prompt_of_body(kind, body) for body in bodies] == [PROMPT, [*PROMPT, 40, 41, 42]]
    assert [max_tokens_of(kind, body) for body in bodies] == [8, 5]
    assert ids(completion) == [40, 41, 42, 43, 44]
    assert logprobs(completion) == logprobs_of([40, 41, 42, 43, 44])
    assert (completion.finish_reason, completion.seams, completion.tries) == ("length", (3,), 2)


def test_the_prompt_that_the_engine_repeats_is_that_of_its_own_try() -> None:
    aborted = plain(VLLM, [40], finish="abort", prompt=PROMPT)
    rest = plain(VLLM, [41], prompt=[*PROMPT, 40])
    assert ids(sample(aborted, rest, body=request(seed=None))[0]) == [40, 41]


def test_spans_of_several_tries_are_attached_to_their_own_tokens() -> None:
    kind = Kind.VLLM_GENERATE
    completion, _ = sample(
        plain(kind, [40, 41, 42], finish="abort", versions=[("a", 0, 1), ("b", 1, 3)]),
        plain(kind, [43], finish="abort", versions=[("b", 0, 1)]),
        plain(kind, [44, 45], versions=[("c", 0, 2)]),
        body=request(seed=None),
        kind=kind,
    )
    assert completion.versions == (
        VersionSpan("a", 0, 1),
        VersionSpan("b", 1, 4),
        VersionSpan("c", 4, 6),
    )
    assert completion.seams == (3, 4)


def test_what_goes_forward_is_not_failing_however_often_it_is_interrupted() -> None:
    aborts = [plain(VLLM, [number], finish="abort") for number in range(7)]
    completion, _ = sample(*aborts, plain(VLLM, [7]), body=request(seed=None), retry=QUICK)
    assert QUICK.tries < completion.tries == 8
    assert ids(completion) == list(range(8))


def test_aborts_that_bring_nothing_are_failures() -> None:
    aborts = [plain(VLLM, [], finish="abort")] * 3
    with pytest.raises(EngineUnavailable, match="aborted"):
        sample(*aborts, plain(VLLM, [7]))


def test_an_abort_at_the_last_token_that_was_asked_for_needs_no_other_request() -> None:
    completion, bodies = sample(plain(VLLM, range(8), finish="abort"))
    assert (completion.finish_reason, completion.seams) == ("length", ())
    assert len(bodies) == 1


# --- answers in one piece, under a seed that holds for a whole request


@pytest.mark.parametrize("kind", TOKEN_KINDS)
def test_an_aborted_reply_of_a_seed_is_sampled_again_from_its_beginning(kind: Kind) -> None:
    completion, bodies = sample(
        plain(kind, [40, 41, 42], finish="abort"),
        plain(kind, [40, 41, 42, 43], finish="length"),
        body=request(seed=7),
        kind=kind,
    )
    assert [prompt_of_body(kind, body) for body in bodies] == [PROMPT, PROMPT]
    assert [max_tokens_of(kind, body) for body in bodies] == [8, 8]
    assert [seed_of(body) for body in bodies] == [7, 7]
    assert ids(completion) == [40, 41, 42, 43]
    assert logprobs(completion) == logprobs_of([40, 41, 42, 43])
    assert (completion.seams, completion.tries, completion.versions[-1].end) == ((), 2, 4)


def test_what_is_sampled_again_has_the_versions_of_the_new_try_alone() -> None:
    kind = Kind.VLLM_GENERATE
    completion, _ = sample(
        plain(kind, [40, 41], finish="abort", versions=[("a", 0, 2)]),
        plain(kind, [40, 41], versions=[("b", 0, 2)]),
        body=request(seed=7),
        kind=kind,
    )
    assert completion.versions == (VersionSpan("b", 0, 2),)


def test_a_reply_that_is_aborted_again_and_again_goes_on_from_its_tokens_at_last() -> None:
    """Else a reply that takes longer than the time between two aborts would never end."""
    aborts = [plain(VLLM, [40, 41], finish="abort")] * (1 + QUICK.tries)
    completion, bodies = sample(*aborts, plain(VLLM, [42]), body=request(seed=7))
    assert [prompt_of_body(VLLM, body) for body in bodies[:-1]] == [PROMPT] * (1 + QUICK.tries)
    assert prompt_of_body(VLLM, bodies[-1]) == [*PROMPT, 40, 41]
    assert seed_of(bodies[-1]) == derived(7, 2)
    assert (ids(completion), completion.seams) == ([40, 41, 42], (2,))


def test_what_an_earlier_run_made_durable_is_never_given_up() -> None:
    body = request(seed=7, draft=draft_of([40, 41]))
    completion, bodies = sample(plain(VLLM, [42], finish="abort"), plain(VLLM, [43]), body=body)
    assert prompt_of_body(VLLM, bodies[1]) == [*PROMPT, 40, 41, 42]
    assert ids(completion) == [40, 41, 42, 43]


# --- streams


@pytest.mark.parametrize("kind", TOKEN_KINDS)
@pytest.mark.parametrize("cut", [True, False], ids=["cut", "ended"])
def test_a_stream_that_breaks_off_gives_up_its_last_token(kind: Kind, cut: bool) -> None:
    kept = Kept()
    broken = streamed(kind, [40, 41, 42], finish=None, cut=cut)
    rest = streamed(kind, [42, 43])
    completion, bodies = sample(broken, rest, body=kept.request(), kind=kind)
    assert prompt_of_body(kind, bodies[1]) == [*PROMPT, 40, 41]
    assert max_tokens_of(kind, bodies[1]) == 6
    assert ids(completion) == [40, 41, 42, 43]
    assert logprobs(completion) == logprobs_of([40, 41, 42, 43])
    assert completion.seams == (2,)
    assert kept.ids[:2] == [40, 41]


@pytest.mark.parametrize("kind", TOKEN_KINDS)
def test_a_stream_that_says_it_was_aborted_keeps_its_last_token(kind: Kind) -> None:
    kept = Kept()
    aborted = streamed(kind, [40, 41, 42], finish="abort")
    completion, bodies = sample(aborted, streamed(kind, [43]), body=kept.request(), kind=kind)
    assert prompt_of_body(kind, bodies[1]) == [*PROMPT, 40, 41, 42]
    assert ids(completion) == [40, 41, 42, 43]
    assert completion.seams == (3,)
    assert kept.ids == [40, 41, 42]


def test_a_stream_that_breaks_off_after_one_token_has_given_nothing() -> None:
    broken = [streamed(VLLM, [40], finish=None, cut=True) for _ in range(3)]
    with pytest.raises(EngineUnavailable):
        sample(*broken, streamed(VLLM, [40]), body=Kept().request())


def test_the_versions_of_a_stream_are_those_that_its_end_tells() -> None:
    kind = Kind.VLLM_GENERATE
    chunks = events(kind, [42, 43])
    chunks[-1]["choices"][0]["weight_versions"] = [{"version": "b", "start": 0, "end": 2}]
    completion, _ = sample(
        streamed(kind, [40, 41, 42], finish=None, cut=True),
        Answer(chunks=sse(*chunks, DONE)),
        body=Kept().request(),
        kind=kind,
    )
    assert completion.versions == (
        VersionSpan("", 0, 2, VersionSource.UNKNOWN),
        VersionSpan("b", 2, 4),
    )


async def test_an_update_that_is_acknowledged_in_mid_stream_splits_the_versions_there() -> None:
    async with Canned() as server, policy_at(server) as policy:
        kept, updated = Kept(), asyncio.Event()
        messages = sse(*events(VLLM, [40, 41, 42, 43]), DONE)

        async def third_is_there() -> None:
            await until(lambda: kept.ids == [40, 41])

        chunks: list[bytes | Pause] = [*messages[:2], updated.wait, messages[2]]
        chunks += [third_is_there, *messages[3:]]
        server.says(PATHS[VLLM], Answer(chunks=chunks))
        await record_weights(policy, "v1")
        call = asyncio.create_task(policy.sample(kept.request()))
        await until(lambda: bool(kept.ids))
        await record_weights(policy, "v2")
        updated.set()
        versions = (await call).versions
        # The chunk that was under way when it was acknowledged may be of either.
        assert [span.version for span in versions] == ["v1", "v2"]
        assert 2 <= versions[0].end <= 3
        assert {span.source for span in versions} == {VersionSource.ASSUMED}


# --- what is made durable


def spaced(chunks: list[bytes]) -> list[bytes | Pause]:
    async def pause() -> None:
        await asyncio.sleep(0.005)

    return [part for chunk in chunks for part in (chunk, pause)]


@pytest.mark.parametrize("every", [1, 2, 3, 100])
def test_drafts_are_contiguous_and_never_have_the_last_token(every: int) -> None:
    kept = Kept()
    stream = Answer(chunks=spaced(sse(*events(VLLM, range(40, 48)), DONE)))
    completion, _ = sample(stream, body=kept.request(every=every))
    assert ids(completion) == list(range(40, 48))
    assert kept.ids == list(range(40, 48))[: len(kept.ids)]
    assert kept.logprobs == logprobs_of(kept.ids)
    assert len(kept.ids) < 8, "what is whole is recorded as a whole"
    assert kept.ids or every > 1
    assert all(size >= every for size in kept.sizes())


def test_what_comes_slowly_is_saved_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "SAVE_SECONDS", 0.0)
    kept = Kept()
    stream = Answer(chunks=spaced(sse(*events(VLLM, range(40, 48)), DONE)))
    sample(stream, body=kept.request(every=1_000))
    assert kept.ids
    assert kept.ids == list(range(40, 47))[: len(kept.ids)]


@pytest.mark.parametrize("finish", [None, "stop"])
async def test_a_call_that_is_cancelled_keeps_what_it_has_but_for_the_last_token(
    finish: str | None,
) -> None:
    """Also after the end: who goes on must find the end again, and not sample beyond it."""
    kept, has_sent_all = Kept(), asyncio.Event()

    async def hang() -> None:
        has_sent_all.set()
        await forever()

    async with Canned() as server, policy_at(server) as policy:
        chunks: list[bytes | Pause] = [*sse(*events(VLLM, [40, 41, 42], finish=finish)), hang]
        server.says(PATHS[VLLM], Answer(chunks=chunks))
        call = asyncio.create_task(policy.sample(kept.request(every=1)))
        await has_sent_all.wait()
        await asyncio.sleep(0.05)  # It arrives.
        call.cancel()
        await asyncio.wait({call})
        assert call.cancelled()
    assert (kept).ids == [40, 41]


# --- drafts of a run before


@pytest.mark.parametrize("kind", TOKEN_KINDS)
@pytest.mark.parametrize("stream", [True, False])
def test_a_durable_draft_is_gone_on_from(kind: Kind, stream: bool) -> None:
    draft = draft_of([40, 41])
    kept = Kept(draft)
    body = kept.request(draft=draft) if stream else request(draft=draft)
    reply = streamed(kind, [42, 43, 44]) if stream else plain(kind, [42, 43, 44])
    completion, bodies = sample(reply, body=body, kind=kind)
    assert prompt_of_body(kind, bodies[0]) == [*PROMPT, 40, 41]
    assert max_tokens_of(kind, bodies[0]) == 6
    assert ids(completion) == [40, 41, 42, 43, 44]
    assert logprobs(completion) == logprobs_of([40, 41, 42, 43, 44])
    assert completion.versions[0] == VersionSpan("old", 0, 2)
    assert completion.versions[-1].end == 5
    assert completion.seams == (2,)


def test_a_lie_takes_nothing_of_a_durable_draft_away() -> None:
    draft = draft_of([40, 41])
    kept = Kept(draft)
    lie = Answer(chunks=sse(answer_body(VLLM, [42], logprobs=[2.0])))
    completion, bodies = sample(lie, streamed(VLLM, [42]), body=kept.request(draft=draft))
    assert prompt_of_body(VLLM, bodies[1]) == [*PROMPT, 40, 41]
    assert ids(completion) == [40, 41, 42]


@pytest.mark.parametrize(
    ("drafted", "more", "reason"),
    [
        ([40, 41, 42], {"max_tokens": 3}, "length"),
        ([40, 41, 2], {"stop_token_ids": (2,)}, "stop"),
    ],
)
def test_a_draft_that_is_whole_needs_no_request(
    drafted: list[int], more: dict[str, Any], reason: str
) -> None:
    completion, bodies = sample(body=request(draft=draft_of(drafted), **more))
    assert bodies == []
    assert (ids(completion), completion.finish_reason) == (drafted, reason)
    assert completion.seams == ()


# --- seeds


@pytest.mark.parametrize("kind", TOKEN_KINDS)
def test_the_rest_of_a_completion_is_not_drawn_with_the_noise_of_its_beginning(kind: Kind) -> None:
    _, bodies = sample(
        streamed(kind, [40, 41], finish="abort"),
        streamed(kind, [42], finish="abort"),
        streamed(kind, [43]),
        body=Kept().request(seed=7),
        kind=kind,
    )
    seeds = [seed_of(body) for body in bodies]
    assert seeds == [7, derived(7, 2), derived(7, 3)]
    assert len(set(seeds)) == 3
    assert all(0 <= seed < 2**63 for seed in seeds)


def seed_of(body: dict[str, dict[str, int]]) -> int:
    params: dict[str, object] = {**body, **body.get("sampling_params", {})}
    result = params.get("seed", params.get("sampling_seed"))
    assert isinstance(result, int)
    return result


@pytest.mark.parametrize("seeds", ["position", None])
def test_an_engine_whose_seeds_name_positions_is_given_the_same_one(seeds: str | None) -> None:
    async def main() -> list[int]:
        async with Canned() as server, policy_at(server) as policy:
            server.always("/v1/models", models(**({"seeds": seeds} if seeds else {})))
            server.says(PATHS[VLLM], streamed(VLLM, [40], finish="abort"), streamed(VLLM, [41]))
            await policy.check()
            await policy.sample(Kept().request(seed=7))
            return [body["seed"] for body in server.bodies(PATHS[VLLM])]

    assert run(main()) == [7, 7 if seeds else derived(7, 1)]


def test_without_a_seed_none_is_made_up() -> None:
    aborted, rest = plain(VLLM, [40], finish="abort"), plain(VLLM, [41])
    _, bodies = sample(aborted, rest, body=request(seed=None))
    assert all("seed" not in body for body in bodies)


# --- time


def test_a_deadline_that_comes_while_tokens_come_ends_the_completion_as_it_is() -> None:
    async def slow() -> None:
        await asyncio.sleep(0.4)

    chunks = [part for chunk in sse(*events(VLLM, range(40, 48))) for part in (chunk, slow)]
    retry = RetryPolicy(tries=3, deadline=1.5, base=0.001)
    completion, bodies = sample(Answer(chunks=chunks), body=Kept().request(), retry=retry)
    results = ids(completion)
    assert completion.finish_reason == "deadline"
    assert 0 < len(results) < 8
    assert results == list(range(40, 40 + len(results)))
    assert len(bodies) == 1


async def test_a_stream_that_stalls_goes_on_elsewhere() -> None:
    async with Canned() as canned, Canned() as other:
        retry = RetryPolicy(tries=3, deadline=60, base=0.001, stall_timeout=1.0)
        async with policy_at(canned, other, retry=retry) as policy:
            first = await policy.choose(request(home="h"))
            slow, quick = (canned, other) if first.url == canned.url else (other, canned)
            messages = sse(*events(VLLM, [40, 41, 42], finish=None))
            stalling: list[bytes | Pause] = [*messages, forever]
            slow.always(PATHS[VLLM], Answer(chunks=stalling))
            quick.always(PATHS[VLLM], streamed(VLLM, [42, 43]))
            completion = await policy.sample(Kept().request(home="h"))
            assert ids(completion) == [40, 41, 42, 43]
            assert [len(slow.requests), len(quick.requests)] == [1, 1]
            assert quick.requests[0].body["prompt"] == [*PROMPT, 40, 41]
