"""Every engine may be interrupted: by a kill, an abort, a pause, or a client that leaves."""

import asyncio

import msgspec
import pytest

from holdfast.policy.policy import Completion, Request
from support.conformance.engines import WILD, Engine, Server, once_for_each_server, wait_until_idle
from support.conformance.interruptions import SOON, TooLate, in_time, interrupted
from support.conformance.samples import (
    after,
    assert_well_formed,
    drawn,
    ids,
    is_plain,
    logprobs,
    long_request,
    policy_for,
    request,
    streamed,
    tokens_until,
)

CLOSE = 1e-5
WHOLE = 1900
KEPT = (1, 20, 47)


@pytest.fixture
def engine(engine: Engine) -> Engine:
    return once_for_each_server(engine)


def killed_and_started_again(server: Server) -> None:
    server.kill()
    server.start()


def aborted(server: Server) -> None:
    server.pause(abort=True)
    server.resume()


def assert_goes_on(
    engine: Engine, completion: Completion, undisturbed: Completion, seam: int
) -> None:
    """Up to the seam it is the undisturbed one; after it too, where seeds go by position."""
    assert_well_formed(completion, max_tokens=engine.long)
    assert ids(completion)[:seam] == ids(undisturbed)[:seam]
    assert logprobs(completion)[:seam] == pytest.approx(
        logprobs(undisturbed)[:seam], abs=CLOSE, rel=0
    )
    if engine.can.seeds_by_position:
        assert ids(completion) == ids(undisturbed)
        assert logprobs(completion) == logprobs(undisturbed)
        assert completion.finish_reason == undisturbed.finish_reason


# --- going on from what is durable


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_a_completion_goes_on_from_its_durable_tokens(engine: Engine, *, stream: bool) -> None:
    body, undisturbed = long_request(engine, tokens=48)
    going_on = [after(body, undisturbed, keep) for keep in KEPT]
    for item, keep in zip(
        drawn(engine, *map(streamed, going_on) if stream else going_on), KEPT, strict=True
    ):
        assert_well_formed(item, max_tokens=48)
        assert ids(item)[:keep] == ids(undisturbed)[:keep]
        assert logprobs(item)[:keep] == logprobs(undisturbed)[:keep]
        assert (item.versions[0].version, item.versions[0].end) == ("before", keep)
        assert item.seams == (keep,)
        if engine.can.seeds_by_position:
            assert (ids(item), logprobs(item)) == (ids(undisturbed), logprobs(undisturbed))


def test_what_is_complete_already_costs_no_request(engine: Engine) -> None:
    body, undisturbed = long_request(engine, tokens=16)
    (completion,) = drawn(engine, after(body, undisturbed, 16))
    assert (ids(completion), completion.finish_reason) == (ids(undisturbed), "length")


def test_a_stop_string_across_the_seam_is_found(engine: Engine) -> None:
    body = request(engine, 5, max_tokens=32)
    (free,) = drawn(engine, body)
    tokens, decode = ids(free), engine.renderer.decode
    # Two whole tokens of plain text, the first of which is durable.
    at = next(at for at in range(2, len(tokens) - 2) if is_plain(decode(tokens[at : at + 2])))
    stop = decode(tokens[at : at + 2])
    end = tokens_until(engine, stop, tokens)
    sampling = msgspec.structs.replace(body.sampling, stop=(stop,))
    stopping = msgspec.structs.replace(body, sampling=sampling, decode=decode)
    going_on = after(stopping, free, end - 1)
    if not engine.can.seeds_by_position:
        # What follows is another draw: only that it is well-formed can be said.
        for item in drawn(engine, going_on, streamed(going_on)):
            assert_well_formed(item, max_tokens=32)
        return
    for entry in drawn(engine, going_on, streamed(going_on)):
        assert ids(entry) == tokens[:end]
        assert entry.finish_reason == "stop"


# --- the engine is interrupted


def test_an_engine_killed_in_mid_stream_and_started_again_is_gone_on_with(engine: Engine) -> None:
    if not engine.can.starts_quickly and engine.is_second:
        pytest.skip("it takes a minute to start, and was killed once already")
    body, undisturbed = long_request(engine, engine.long)

    def killed() -> Completion:
        result = interrupted(engine, body, lambda: killed_and_started_again(engine.server))
        if result.tries == 1:
            raise TooLate
        return result

    completion = in_time(killed)
    (seam,) = completion.seams
    assert seam >= SOON
    assert_goes_on(engine, completion, undisturbed, seam)


def aborted_once(engine: Engine, body: Request) -> Completion:
    """The completion, after its engine was told to abort all that it does."""
    if not engine.can.pauses:
        pytest.skip("it cannot be told to abort")

    async def aborting() -> Completion:
        async with policy_for(engine) as policy:
            call = asyncio.create_task(policy.sample(body))
            await until_it_samples(engine.server, call)
            await asyncio.to_thread(aborted, engine.server)
            completion = await call
            if completion.tries == 1:
                raise TooLate
            return completion

    return in_time(lambda: asyncio.run(aborting()))


def test_a_stream_that_the_engine_aborts_keeps_its_tokens_and_goes_on(engine: Engine) -> None:
    body, undisturbed = long_request(engine, engine.long)
    completion = aborted_once(engine, streamed(body))
    assert completion.tries == 2
    (seam,) = completion.seams
    assert 0 < seam < engine.long
    assert_goes_on(engine, completion, undisturbed, seam)


def test_a_whole_reply_that_the_engine_aborts_is_the_undisturbed_one(engine: Engine) -> None:
    """It goes on where seeds name positions, and is sampled anew where they hold for requests."""
    body, undisturbed = long_request(engine, engine.long)
    completion = aborted_once(engine, body)
    assert completion.tries == 2
    assert len(completion.seams) == engine.can.seeds_by_position
    assert ids(completion) == ids(undisturbed)
    assert logprobs(completion) == pytest.approx(logprobs(undisturbed), abs=CLOSE, rel=0)
    assert completion.finish_reason == undisturbed.finish_reason


def test_without_a_seed_a_whole_reply_keeps_the_tokens_that_it_has(engine: Engine) -> None:
    body, _ = long_request(engine, engine.long)
    completion = aborted_once(engine, msgspec.structs.replace(body, seed=None))
    (seam,) = completion.seams
    assert 0 < seam < engine.long
    assert_well_formed(completion, max_tokens=engine.long)


async def until_it_samples(server: Server, call: "asyncio.Task[Completion]") -> None:
    """Returns when some tokens of `call` were sampled."""
    before = server.sampled()
    async with asyncio.timeout(60):
        while await asyncio.to_thread(server.sampled) < before + 4:
            if call.done():
                call.result()
                raise TooLate
            await asyncio.sleep(0.005)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_requests_wait_while_it_is_paused_and_are_answered_after(
    engine: Engine, *, stream: bool
) -> None:
    if not engine.can.pauses:
        pytest.skip("it cannot be paused")
    body, undisturbed = long_request(engine, engine.long)
    fresh = request(engine, 3, max_tokens=8)

    async def pausing() -> tuple[Completion, Completion]:
        async with policy_for(engine) as policy:
            under_way = asyncio.create_task(policy.sample(streamed(body) if stream else body))
            await until_it_samples(engine.server, under_way)
            await asyncio.to_thread(engine.server.pause, abort=False)
            try:
                late = asyncio.create_task(policy.sample(streamed(fresh) if stream else fresh))
                await asyncio.wait([under_way, late], timeout=0.15)
                waiting = (not under_way.done(), not late.done())
            finally:
                await asyncio.to_thread(engine.server.resume)
            completions = await under_way, await late
            assert waiting[1]
            if not waiting[0]:
                raise TooLate
            return completions

    completion, late = in_time(lambda: asyncio.run(pausing()))
    assert (completion.tries, completion.seams) == (1, ())
    assert ids(completion) == ids(undisturbed)
    assert logprobs(completion) == pytest.approx(logprobs(undisturbed), abs=CLOSE, rel=0)
    assert_well_formed(late, max_tokens=8)


# --- the client leaves


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_a_client_that_leaves_frees_the_engine(engine: Engine, *, stream: bool) -> None:
    body = request(engine, 1, max_tokens=WHOLE, temperature=WILD)

    async def leaving() -> None:
        async with policy_for(engine) as policy:
            calls = [
                asyncio.create_task(policy.sample(streamed(body) if stream else body))
                for _ in range(4)
            ]
            await until_it_samples(engine.server, calls[0])
            for call in calls:
                call.cancel()
            await asyncio.wait(calls)

    def sampled_of_what_was_left() -> int:
        before = engine.server.sampled()
        asyncio.run(leaving())
        wait_until_idle(engine.server)
        return engine.server.sampled() - before

    # It did not come to the end of what nobody wanted any more.
    assert in_time(sampled_of_what_was_left) < 4 * WHOLE
