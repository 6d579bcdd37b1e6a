"""Weights that change, and an engine that is paused while they do."""

import asyncio
import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from holdfast.testing import FakeEngine, Fault, FaultKind
from support.testing.http_client import PATHS, PROMPT, Answer, ask, body, sampled, send


@pytest.fixture(scope="module")
def engines() -> Iterator[dict[str, FakeEngine]]:
    """Answers that never end by themselves."""
    with (
        FakeEngine(dialect="vllm-scale-out", mean_length=0) as vllm,
        FakeEngine(dialect="sglang", mean_length=0) as sglang,
    ):
        yield {"generate": vllm, "completions": vllm, "sglang": sglang}


@pytest.fixture
def vllm(engines: dict[str, FakeEngine]) -> FakeEngine:
    return fresh(engines["generate"])


@pytest.fixture
def sglang(engines: dict[str, FakeEngine]) -> FakeEngine:
    return fresh(engines["sglang"])


@pytest.fixture(params=["generate", "sglang"])
def wire(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def engine(engines: dict[str, FakeEngine], wire: str) -> FakeEngine:
    return fresh(engines[wire])


def fresh(engine: FakeEngine) -> FakeEngine:
    engine.set_faults()
    engine.update_weights("default")
    engine.reset()
    return engine


def control(engine: FakeEngine, path: str, body: object = None, *, method: str = "POST") -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"{engine.url}{path}", data, method=method)
    with urllib.request.urlopen(request, timeout=60) as response:
        return json.loads(response.read() or b"null")


async def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 240
    while not await asyncio.to_thread(true):
        assert time.monotonic() < deadline, "it never came true"
        await asyncio.sleep(0.01)


def during(
    engine: FakeEngine, do: Callable[[], object], *, wire: str = "generate", **fields: Any
) -> Answer:
    """The answer to a request in the middle of which, after 10 tokens, something is done."""

    async def both() -> Answer:
        engine.set_faults(Fault(FaultKind.HOLD, after=10))
        request = body(engine, wire, **{"max_tokens": 40, **fields})
        sending = asyncio.create_task(send(engine, PATHS[wire], request))
        await until(lambda: engine.stats().held == 1)
        await asyncio.to_thread(do)
        engine.release()
        return await sending

    return asyncio.run(both())


def spans_of(wire: str, answer: Any) -> list[tuple[str, int, int]]:
    meta = answer["meta_info"] if wire == "sglang" else answer["choices"][0]
    return [(span["version"], span["start"], span["end"]) for span in meta["weight_versions"]]


# --- versions


@pytest.mark.parametrize("stream", [False, True])
def test_a_switch_in_the_middle_gives_two_spans_and_other_tokens(
    engine: FakeEngine, wire: str, stream: bool
) -> None:
    answer = during(engine, lambda: engine.update_weights("v2"), wire=wire, stream=stream)
    old = sampled(wire, [ask(fresh(engine), wire, max_tokens=40).json])
    events = answer.events if stream else [answer.json]
    seen = sampled(wire, events)
    last = events[-1] if wire == "sglang" or not stream else events[-2]
    assert spans_of(wire, last) == [("default", 0, 10), ("v2", 10, 40)]
    assert seen.ids[:10] == old.ids[:10]
    assert seen.ids[10:] != old.ids[10:]


def test_a_switched_generation_is_resumed_identically(engine: FakeEngine, wire: str) -> None:
    whole = sampled(wire, [during(engine, lambda: engine.update_weights("v2"), wire=wire).json])
    engine.set_faults()
    for cut in range(10, 40, 5):
        rest = ask(engine, wire, prompt=PROMPT + whole.ids[:cut], max_tokens=40 - cut).json
        after = sampled(wire, [rest])
        assert (after.ids, after.logprobs) == (whole.ids[cut:], whole.logprobs[cut:])
        assert spans_of(wire, rest) == [("v2", 0, 40 - cut)]


def test_new_weights_outlive_the_process(vllm: FakeEngine) -> None:
    vllm.update_weights("step-7")
    before = ask(vllm, "generate").json
    vllm.restart()
    after = ask(vllm, "generate").json
    assert spans_of("generate", before) == spans_of("generate", after)
    assert spans_of("generate", after)[0][0] == "step-7"
    assert sampled("generate", [before]) == sampled("generate", [after])


def test_the_version_is_told_and_can_be_named(engine: FakeEngine, wire: str) -> None:
    path = "/model_info" if wire == "sglang" else "/weight_info"
    assert control(engine, path, method="GET")["weight_version"] == "default"
    answer = control(engine, "/update_weight_version", {"new_version": "v9"})
    assert (answer["success"], answer["new_version"]) == (True, "v9")
    assert control(engine, path, method="GET")["weight_version"] == "v9"


# --- pauses


def test_a_kept_generation_goes_on_after_the_resume(vllm: FakeEngine) -> None:
    def switch() -> None:
        control(vllm, "/pause?mode=keep")
        vllm.release()
        time.sleep(0.1)
        assert vllm.stats().tokens == 10, "frozen between two tokens"
        control(vllm, "/update_weight_version", {"new_version": "v2"})
        control(vllm, "/resume")

    result = during(vllm, switch).json
    assert spans_of("generate", result) == [("default", 0, 10), ("v2", 10, 40)]


@pytest.mark.parametrize("stream", [False, True])
def test_an_aborting_pause_answers_with_what_there_is(vllm: FakeEngine, stream: bool) -> None:
    answer = during(vllm, lambda: control(vllm, "/pause?mode=abort"), stream=stream)
    control(vllm, "/resume")
    seen = sampled("generate", answer.events[:-1] if stream else [answer.json])
    assert (answer.status, answer.broke, answer.done) == (200, None, stream)
    assert (seen.finish, len(seen.ids)) == ("abort", 10)


async def test_a_waiting_pause_returns_when_all_are_done(vllm: FakeEngine) -> None:
    vllm.set_faults(Fault(FaultKind.HOLD, after=10))
    sending = asyncio.create_task(send(vllm, PATHS["generate"], body(vllm, "generate")))
    await until(lambda: vllm.stats().held == 1)
    pausing = asyncio.create_task(asyncio.to_thread(control, vllm, "/pause?mode=wait"))
    await until(lambda: bool(control(vllm, "/is_paused", method="GET")["is_paused"]))
    assert not pausing.done()
    vllm.release()
    assert await pausing == {"status": "paused"}
    assert vllm.stats().completions == 1
    assert (await sending).json["choices"][0]["finish_reason"] == "length"
    control(vllm, "/resume")


@pytest.mark.parametrize("mode", ["keep", "abort", "wait"])
@pytest.mark.parametrize("stream", [False, True])
async def test_new_requests_hang_until_the_resume(
    vllm: FakeEngine, mode: str, stream: bool
) -> None:
    control(vllm, f"/pause?mode={mode}")
    request = body(vllm, "completions", stream=stream)
    sending = asyncio.create_task(send(vllm, PATHS["completions"], request))
    waiting = 'vllm:num_requests_waiting{engine="0",model_name="fake"} 1.0'
    await until(lambda: waiting in text_of(vllm, "/metrics"))
    assert not sending.done()
    assert vllm.stats().tokens == 0
    control(vllm, "/resume")
    answer = await sending
    assert (answer.status, answer.broke, vllm.stats().completions) == (200, None, 1)


def test_a_client_bounds_how_long_it_hangs(vllm: FakeEngine) -> None:
    control(vllm, "/pause")
    request = body(vllm, "completions")
    answer = asyncio.run(send(vllm, PATHS["completions"], request, seconds=0.3))
    assert isinstance(answer.broke, TimeoutError)
    asyncio.run(until(lambda: vllm.stats().in_flight == 0))
    control(vllm, "/resume")
    assert vllm.stats().tokens == 0, "who has left is not answered later"


def test_an_unknown_mode_is_refused(vllm: FakeEngine) -> None:
    with pytest.raises(urllib.error.HTTPError, match="400") as caught:
        control(vllm, "/pause?mode=nap")
    caught.value.close()
    assert control(vllm, "/is_paused", method="GET") == {"is_paused": False}


def test_requests_that_run_are_in_the_metrics(vllm: FakeEngine) -> None:
    seen: list[str] = []
    during(vllm, lambda: seen.append(text_of(vllm, "/metrics")))
    gauge = 'vllm:num_requests_running{engine="0",model_name="fake"}'
    assert f"{gauge} 1.0" in seen[0]
    assert f"{gauge} 0.0" in text_of(vllm, "/metrics")


def test_one_request_is_aborted_by_its_id(vllm: FakeEngine) -> None:
    def abort() -> None:
        answer = control(vllm, "/abort_requests", {"request_ids": ["generate-tokens-r-0"]})
        assert answer == {"status": "aborted", "aborted": 1}

    result = during(vllm, abort).json
    assert result["choices"][0]["finish_reason"] == "abort"


@pytest.mark.parametrize("by", [{"rid": "mine"}, {"abort_all": True}])
def test_sglang_aborts_by_its_own_names(sglang: FakeEngine, by: dict[str, Any]) -> None:
    result = during(
        sglang, lambda: control(sglang, "/abort_request", by), wire="sglang", rid="mine"
    ).json
    assert result["meta_info"]["finish_reason"]["type"] == "abort"
    assert (result["meta_info"]["id"], len(result["output_ids"])) == ("mine", 10)


def test_sglang_pauses_by_its_own_names(sglang: FakeEngine) -> None:
    def pause() -> None:
        control(sglang, "/pause_generation", {"mode": "in_place"})
        sglang.update_weights("v2")
        control(sglang, "/continue_generation", {})

    result = during(sglang, pause, wire="sglang").json
    assert spans_of("sglang", result) == [("default", 0, 10), ("v2", 10, 40)]


def text_of(engine: FakeEngine, path: str) -> str:
    with urllib.request.urlopen(f"{engine.url}{path}", timeout=20) as response:
        data: bytes = response.read()
        return data.decode()
