"""Engines that are out of order or hostile: what they say is never taken for a model's reply."""

import asyncio
from typing import Any
from urllib.parse import urlsplit

import pytest

from holdfast.policy.client import endpoint as endpoints
from holdfast.policy.client.circuit_breaker import FAILURES_IN_A_ROW, CircuitBreaker
from holdfast.policy.client.endpoint import Denied
from holdfast.policy.client.replicas import EnginePolicy
from holdfast.policy.dialects.dialect import Kind
from holdfast.policy.policy import Completion
from holdfast.policy.rendering.renderer import ByteRenderer
from holdfast.policy.retry import RetryPolicy
from holdfast.records.errors import (
    BadAnswer,
    BadRequest,
    ContextOverflow,
    EndpointDown,
    EngineUnavailable,
    PolicyRefused,
)
from holdfast.server_tokens import LoopbackToken
from holdfast.testing import ManualClock
from support.policy.answers import (
    MODEL,
    PATHS,
    answer_body,
    events,
    models,
    plain,
    request,
    streamed,
)
from support.policy.canned_server import DONE, Answer, Canned, Pause, forever, sse
from support.policy.clients import ONCE, QUICK, ids, policy_at, run, sample, until
from support.policy.drafts import Kept, draft_of

VLLM = Kind.VLLM
PATH = PATHS[VLLM]
DIED = {"error": {"message": "EngineCore died", "code": 500}}


# --- stop strings


@pytest.mark.parametrize("together", [True, False], ids=["one read", "many reads"])
def test_a_stop_string_across_a_seam_is_found_in_the_read_that_brings_the_engines_death(
    together: bool,
) -> None:
    draft = draft_of(list(b"hello ST"))
    chunks = sse(*events(VLLM, list(b"OP world"), finish=None), DIED, DONE)
    broken = Answer(chunks=[b"".join(chunks)] if together else chunks)
    body = Kept(draft).request(
        draft=draft, stop=("STOP",), decode=ByteRenderer().decode, max_tokens=50
    )
    completion, bodies = sample(broken, streamed(VLLM, list(b"s and more")), body=body)
    assert bytes(ids(completion)) == b"hello STOP"
    assert (completion.finish_reason, completion.seams, len(bodies)) == ("stop", (8,), 1)


def test_a_stop_string_across_the_seam_of_two_broken_tries_is_found() -> None:
    first = Answer(chunks=sse(*events(VLLM, list(b"hello STO"), finish=None)), cut=True)
    second = b"".join(sse(*events(VLLM, list(b"OP world"), finish=None), DIED))
    body = Kept().request(stop=("STOP",), decode=ByteRenderer().decode, max_tokens=50, every=4)
    completion, bodies = sample(first, Answer(chunks=[second]), body=body)
    assert bytes(bodies[1]["prompt"][3:]) == b"hello ST", (
        "the last token before a break is given up"
    )
    assert bytes(ids(completion)) == b"hello STOP"
    assert (completion.finish_reason, len(bodies)) == ("stop", 2)


# --- streams that go on without going forward


FILLERS = {
    "comments": b": keep-alive\n\n",
    "bytes of an event that never ends": b"d",
    "events without tokens": sse(
        {"model": MODEL, "choices": [{"index": 0, "token_ids": [], "text": ""}]}
    )[0],
}


def passing(clock: ManualClock, seconds: float) -> Pause:
    """Time passes, and what was written before it is read."""

    async def pause() -> None:
        await asyncio.sleep(0.005)
        await clock.advance(seconds)

    return pause


async def stalled(
    first: list[bytes], filler: bytes, *, deadline: float, stall: float, step: float = 1.0
) -> tuple[Completion | EngineUnavailable, Kept]:
    """What becomes of a stream that begins with `first` and then only sends `filler`, one each
    `step` seconds of the clock that calls live by."""
    clock, kept = ManualClock(), Kept()
    retry = RetryPolicy(tries=1, deadline=deadline, stall_timeout=stall)
    more = [item for _ in range(60) for item in (filler, passing(clock, step))]
    async with Canned() as server:
        server.always(PATH, Answer(chunks=[*first, passing(clock, 0), *more, forever]))
        async with policy_at(server, retry=retry, clock=clock) as policy, asyncio.timeout(120):
            try:
                return await policy.sample(kept.request(max_tokens=100)), kept
            except EngineUnavailable as error:
                return error, kept


@pytest.mark.parametrize("filler", FILLERS.values(), ids=FILLERS)
@pytest.mark.parametrize("tokens", [0, 3])
@pytest.mark.parametrize("deadline", [5.0, 1000.0], ids=["late", "early"])
def test_a_stream_without_tokens_has_stalled_whatever_it_sends(
    filler: bytes, tokens: int, deadline: float
) -> None:
    first = sse(*events(VLLM, [65, 66, 67][:tokens], finish=None))
    ended, _ = run(stalled(first, filler, deadline=deadline, stall=4.0))
    assert isinstance(ended, EngineUnavailable), ended
    assert "sent no token for" in str(ended)


@pytest.mark.parametrize("filler", FILLERS.values(), ids=FILLERS)
def test_a_stream_that_never_brought_a_token_ends_soon_after_the_deadline(filler: bytes) -> None:
    """However long a stall is allowed to be."""
    ended, _ = run(stalled([], filler, deadline=5.0, stall=10_000.0))
    assert isinstance(ended, EngineUnavailable), ended
    assert "sent no token for" in str(ended)


def test_a_stream_that_was_silent_long_before_the_deadline_is_no_truncation() -> None:
    first = sse(*events(VLLM, [65, 66, 67], finish=None))
    ended, kept = run(stalled(first, FILLERS["comments"], deadline=30.0, stall=10_000.0))
    assert isinstance(ended, EngineUnavailable), ended
    assert kept.ids == [65, 66], "what it gave is kept, but for the token that it may have cut"


def test_a_deadline_that_comes_while_tokens_come_ends_the_completion_as_it_is() -> None:
    async def main() -> Completion:
        clock = ManualClock()
        retry = RetryPolicy(tries=1, deadline=5.5, stall_timeout=4.0)
        chunks: list[bytes | Pause] = []
        for data in sse(*events(VLLM, list(range(65, 90)), finish=None)):
            chunks += [data, passing(clock, 1.0)]
        async with Canned() as server:
            server.always(PATH, Answer(chunks=[*chunks, forever]))
            async with policy_at(server, retry=retry, clock=clock) as policy, asyncio.timeout(120):
                return await policy.sample(Kept().request(max_tokens=100))

    completion = run(main())
    assert completion.finish_reason == "deadline"
    results = ids(completion)
    assert 5 <= len(results) < 25
    assert results == list(range(65, 65 + len(results)))


# --- redirects


@pytest.mark.parametrize("status", [302, 307])
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
def test_a_redirect_is_refused_and_nobody_else_is_asked(status: int, stream: bool) -> None:
    async def main() -> tuple[list[Any], str]:
        async with Canned() as server, Canned() as other:
            other.always(PATH, plain(VLLM, [65]))
            server.always(PATH, Answer(status, headers={"Location": other.url + PATH}))
            async with policy_at(server, api_key="sk-not-for-others") as policy:
                with pytest.raises(PolicyRefused) as caught:
                    await policy.sample(Kept().request() if stream else request())
            assert len(server.requests) == 1
            return other.requests, str(caught.value)

    others, message = run(main())
    assert others == []
    assert f"answered {status}" in message


@pytest.mark.parametrize("status", [302, 307])
def test_a_redirect_of_the_list_of_models_is_refused_too(status: int) -> None:
    async def main() -> list[Any]:
        async with Canned() as server, Canned() as other:
            other.always("/v1/models", models())
            away = {"Location": other.url + "/v1/models"}
            server.always("/v1/models", Answer(status, headers=away))
            async with policy_at(server, api_key="sk-not-for-others") as policy:
                with pytest.raises(PolicyRefused, match=f"answered {status}"):
                    await policy.check()
            return other.requests

    assert run(main()) == []


# --- bounds


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoints, "_MAX_ANSWER_BYTES", 5_000)
    monkeypatch.setattr(endpoints, "_MAX_ERROR_BYTES", 2_000)
    monkeypatch.setattr(endpoints, "PROBE_SECONDS", 30.0)


def endless(status: int = 200) -> Answer:
    """More than any bound, and no end: who wants all of it waits until time is up."""
    return Answer(status, chunks=[b" " * 3_000, b" " * 3_000, forever])


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("status", [200, 400, 500])
def test_an_answer_larger_than_its_bound_is_refused_before_its_end(status: int) -> None:
    impatient = RetryPolicy(tries=1, deadline=60, try_timeout=30, stall_timeout=30)
    bound = "5,000" if status == 200 else "2,000"
    with pytest.raises(BadAnswer, match=f"larger than {bound} bytes"):
        sample(endless(status), retry=impatient)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("status", [200, 500])
async def test_a_list_of_models_larger_than_its_bound_is_refused_before_its_end(
    status: int,
) -> None:
    async with Canned() as server:
        server.always("/v1/models", endless(status))
        async with policy_at(server) as policy:
            with pytest.raises(EndpointDown, match="larger than 2,000 bytes"):
                await policy.check()


@pytest.mark.usefixtures("small")
def test_an_answer_of_the_size_of_its_bound_is_taken() -> None:
    raw = answer_body(VLLM, [65])
    raw["padding"] = "x" * 4_000
    assert ids(sample(Answer(body=raw))[0]) == [65]


# --- what is called too long


async def checked(*replies: Answer, room: int | None, body: Any = None) -> Completion:
    """The completion of an engine that has said how long a context it takes."""
    async with Canned() as server:
        server.always("/v1/models", models(max_model_len=room)).says(PATH, *replies)
        async with policy_at(server, retry=QUICK) as policy:
            await policy.check()
            completion = await policy.sample(body or request())
            assert len(server.bodies(PATH)) == len(replies)
            return completion


def too_long(status: int = 400, message: str = "") -> Answer:
    message = message or "This model's maximum context length is 16 tokens"
    return Answer(status, {"error": {"message": message, "code": status}})


@pytest.mark.parametrize("status", [400, 413, 422])
def test_what_is_known_to_fit_and_refused_as_too_long_is_asked_again(status: int) -> None:
    completion = run(checked(too_long(status), plain(VLLM, [65]), room=1000))
    assert (ids(completion), completion.tries) == ([65], 2)


def test_an_engine_that_goes_on_refusing_what_fits_is_out_of_order() -> None:
    with pytest.raises(EngineUnavailable, match="refuses 11 tokens as too long, though it takes"):
        run(checked(too_long(), too_long(), too_long(), room=1000))


def test_what_is_known_to_fit_and_refused_inside_a_200_is_asked_again() -> None:
    message = {
        "error": {"message": "This model's maximum context length is 16 tokens", "code": 400}
    }
    completion = run(checked(Answer(body=message), plain(VLLM, [65]), room=1000))
    assert ids(completion) == [65]


def test_what_is_not_known_to_fit_is_too_long_when_the_engine_says_so() -> None:
    with pytest.raises(ContextOverflow):
        run(checked(too_long(), room=None))


@pytest.mark.parametrize(
    "text",
    ["Request waited too long in the queue", "The upstream took too long", "Name is too long"],
)
def test_what_only_sounds_like_an_overflow_is_none(text: str) -> None:
    with pytest.raises(BadRequest, match=text):
        sample(too_long(400, text), retry=ONCE)


@pytest.mark.parametrize(
    "text", ["The prompt (12 tokens) is too long", "Input length is 12, which is too long"]
)
def test_a_prompt_that_is_called_too_long_is_an_overflow(text: str) -> None:
    with pytest.raises(ContextOverflow):
        sample(too_long(400, text), retry=ONCE)


# --- notices


@pytest.mark.parametrize("owner", ["holdfast", "vllm"])
def test_the_users_key_is_sent_where_the_token_of_the_port_is_refused(owner: str) -> None:
    """The token may be of a server that had the port before, with which this one has nothing to
    do."""
    own = models(owned_by=owner)

    async def main() -> list[str]:
        async with Canned() as server, policy_at(server, api_key="the-users-own-key") as policy:
            endpoint = policy.endpoints[0]
            endpoint.described.owned_by = owner
            with LoopbackToken(urlsplit(server.url).port or 0) as token:
                server.says("/v1/models", Answer(status=401), own)
                assert [model.id for model in await endpoint.models()] == [MODEL]
            sent = [body.headers.get("Authorization", "") for body in server.requests]
            return [each.replace(token.value, "the token") for each in sent]

    assert run(main()) == ["Bearer the token", "Bearer the-users-own-key"]


def test_a_path_that_is_missing_is_not_asked_for_again_without_the_token() -> None:
    """A vLLM that we started would refuse that, and the answer would be lost."""

    async def main() -> int:
        async with Canned() as server, policy_at(server) as policy:
            with LoopbackToken(urlsplit(server.url).port or 0):
                server.says("/update_weight_version", Answer(status=404), Answer(status=403))
                with pytest.raises(Denied, match="404"):
                    await policy.endpoints[0].send("POST", "/update_weight_version", {})
            return len(server.requests)

    assert run(main()) == 1


async def test_an_outage_is_told_once_when_it_begins_and_once_when_it_ends() -> None:
    clock, why, messages = ManualClock(), ["refused"], []

    async def probe(_: bool) -> str | None:
        return why[0] if why else None

    breaker = CircuitBreaker("http://engine", probe, clock=clock, patience=600)
    breaker.notify = messages.append
    for _ in range(FAILURES_IN_A_ROW):
        breaker.record_failure()
    await clock.advance(60)
    assert messages == ["http://engine is down (refused); waiting for it"]
    why.clear()
    await clock.advance(60)
    await breaker.wait_ready()
    breaker.trip()
    await breaker.wait_ready()
    await breaker.aclose()
    assert (messages[1:]) == ["http://engine is back"], "one that answers its probe was not down"


async def test_a_policy_and_its_siblings_tell_of_their_replicas() -> None:
    async def outage(policy: EnginePolicy, server: Canned, texts: list[str]) -> None:
        await server.stop()
        pending = asyncio.create_task(policy.sample(request()))
        await until(lambda: bool(texts))
        await server.start()
        await pending
        name = policy.endpoints[0].name
        assert texts[0].startswith(f"{name} is down (")
        assert texts[1:] == [f"{name} is back"]

    texts: list[str] = []
    async with Canned() as server:
        server.always("/v1/models", models()).always(PATH, plain(VLLM, [65]))
        async with policy_at(server, notify=texts.append) as policy:
            await outage(policy, server, texts)
            texts.clear()
            sibling = policy.sibling([server.url], MODEL)
            await outage(sibling, server, texts)
            await sibling.aclose()
