import http.client
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

from holdfast.policy.rendering.renderer import ByteRenderer
from holdfast.records.message import Message, assistant, user
from holdfast.testing import FakeEngine, Fault, FaultKind
from holdfast.testing.fake_engine.faults import FaultPlan
from holdfast.testing.fake_engine.handle import FakeEngineError

PROMPT = list(ByteRenderer().render([user("hello")], []))
END = ByteRenderer.END


@pytest.fixture(scope="module")
def running_engine() -> Iterator[FakeEngine]:
    with FakeEngine() as engine:
        yield engine


@pytest.fixture
def engine(running_engine: FakeEngine) -> FakeEngine:
    running_engine.set_faults()
    running_engine.reset()
    return running_engine


def ask(engine: FakeEngine, *, request_id: str = "", **body: object) -> dict[str, Any]:
    body = {"model": engine.model, "prompt": PROMPT, "max_tokens": 64, "seed": 1, **body}
    body |= {"logprobs": 0, "return_token_ids": True}
    headers = {"X-Request-Id": request_id} if request_id else {}
    request = urllib.request.Request(
        f"{engine.url}/v1/completions", json.dumps(body).encode(), headers
    )
    with urllib.request.urlopen(request, timeout=60) as response:
        fields: dict[str, Any] = json.load(response)
        return fields


def choice(engine: FakeEngine, *, request_id: str = "", **body: object) -> dict[str, Any]:
    fields: dict[str, Any] = ask(engine, request_id=request_id, **body)["choices"][0]
    return fields


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 240
    while not true():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.01)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


# --- tokens


def test_the_same_seed_and_prompt_give_the_same_tokens_and_logprobs(engine: FakeEngine) -> None:
    assert choice(engine, seed=5) == choice(engine, seed=5)


def test_another_seed_or_another_prompt_gives_other_tokens(engine: FakeEngine) -> None:
    seen = {choice(engine, seed=seed)["text"] for seed in range(20)}
    seen |= {choice(engine, prompt=[*PROMPT, 97 + n])["text"] for n in range(20)}
    assert len(seen) > 35


def test_without_a_seed_each_answer_is_another(engine: FakeEngine) -> None:
    assert len({choice(engine, seed=None)["text"] for _ in range(10)}) > 5


@pytest.mark.parametrize("replies", [(), ("the answer is {n}, or {n}",)])
def test_a_resumed_generation_goes_on_identically(replies: tuple[str, ...]) -> None:
    with FakeEngine(replies=replies, mean_length=40) as engine:
        whole = choice(engine)
        for cut in range(1, len(whole["token_ids"])):
            rest = choice(engine, prompt=PROMPT + whole["token_ids"][:cut], max_tokens=64 - cut)
            assert rest["token_ids"] == whole["token_ids"][cut:]
            for item in (rest, whole):
                assert len(item["logprobs"]["token_logprobs"]) == len(item["token_ids"])
            assert rest["logprobs"]["token_logprobs"] == whole["logprobs"]["token_logprobs"][cut:]


def test_a_completion_that_ends_by_itself_includes_its_end(engine: FakeEngine) -> None:
    given_answer = choice(engine, max_tokens=10_000)
    assert (given_answer["finish_reason"], given_answer["stop_reason"]) == ("stop", None)
    assert given_answer["token_ids"].index(END) == len(given_answer["token_ids"]) - 1
    assert given_answer["text"].encode() == bytes(given_answer["token_ids"][:-1])
    assert set(given_answer["text"]) <= set("abcdefghijklmnopqrstuvwxyz ")


def test_a_completion_that_is_cut_says_so(engine: FakeEngine) -> None:
    given_answer = choice(engine, max_tokens=1, seed=3)
    assert (len(given_answer["token_ids"]), given_answer["finish_reason"]) == (1, "length")


def test_lengths_have_the_mean_that_was_asked_for(engine: FakeEngine) -> None:
    lengths = [len(choice(engine, seed=n, max_tokens=10_000)["token_ids"]) for n in range(200)]
    assert 18 < sum(lengths) / len(lengths) < 30


def test_a_stop_token_and_a_stop_string_end_a_completion(engine: FakeEngine) -> None:
    whole = choice(engine)
    text = whole["text"]
    token = whole["token_ids"][4]
    stopped = choice(engine, stop_token_ids=[token])
    first = whole["token_ids"].index(token) + 1
    assert stopped["token_ids"] == whole["token_ids"][:first]
    assert (stopped["finish_reason"], stopped["stop_reason"]) == ("stop", token)
    stopped = choice(engine, stop=[text[3:5]])
    cut = text.index(text[3:5])
    assert (stopped["text"], stopped["stop_reason"]) == (text[:cut], text[3:5])
    assert stopped["token_ids"] == whole["token_ids"][: cut + 2]


def test_logprobs_are_finite_negative_and_exact_in_float32(engine: FakeEngine) -> None:
    for value in choice(engine)["logprobs"]["token_logprobs"]:
        assert -5 < value < 0
        assert value * 256 == int(value * 256)


# --- replies


def reply(engine: FakeEngine, messages: list[Message], seed: int) -> str:
    prompt = list(ByteRenderer().render(messages, []))
    given_answer = choice(engine, prompt=prompt, seed=seed, max_tokens=200)
    assert given_answer["token_ids"][-1] == END
    return ByteRenderer().parse(given_answer["token_ids"]).text


def test_replies_are_chosen_by_turn_and_filled_with_numbers() -> None:
    first, later = [user("hi")], [user("hi"), assistant("so"), user("and?")]
    with FakeEngine(replies=("@0 first {n}", "@1 later {n} über {n}", "any")) as engine:
        openings = {reply(engine, first, seed) for seed in range(30)}
        answers = {reply(engine, later, seed) for seed in range(30)}
    assert {text.split()[0] for text in openings} == {"first", "any"}
    assert {text.split()[0] for text in answers} == {"later", "any"}
    assert len(openings) > 5
    for text in answers - {"any"}:
        single, between, other = text.removeprefix("later ").split()
        assert between == "über"
        assert 0 <= int(single) <= 99
        assert 0 <= int(other) <= 99


def test_a_reply_is_cut_at_max_tokens_and_letters_answer_where_no_reply_fits() -> None:
    with FakeEngine(replies=("@5 never here",)) as engine:
        assert choice(engine)["text"] != "never here"
    with FakeEngine(replies=("abcdef",)) as engine:
        given_answer = choice(engine, max_tokens=3)
        assert (given_answer["text"], given_answer["finish_reason"]) == ("abc", "length")


# --- counters and faults


def test_requests_completions_and_tokens_are_counted(engine: FakeEngine) -> None:
    tokens = 0
    for name in ("a", "b", "a"):
        tokens += ask(engine, request_id=name)["usage"]["completion_tokens"]
    stats = engine.stats()
    assert (stats.requests, stats.completions, stats.tokens, stats.in_flight) == (3, 3, tokens, 0)
    assert engine.requests() == [("a", 0), ("b", 1), ("a", 2)]
    engine.reset()
    assert engine.stats().requests == 0
    assert engine.requests() == []


@pytest.mark.parametrize(("kind", "done"), [("reset_before", 0), ("reset_after", 1)])
def test_a_reset_is_a_reset_and_work_is_counted_if_it_was_done(
    engine: FakeEngine, kind: str, done: int
) -> None:
    engine.set_faults(Fault(FaultKind(kind)))
    with pytest.raises(ConnectionResetError):
        ask(engine, request_id="x")
    assert engine.stats().completions == done
    assert engine.stats().faults == {kind: 1}
    assert ask(engine, request_id="x")["id"] == "cmpl-x"


def test_a_truncated_body_ends_before_its_content_length(engine: FakeEngine) -> None:
    engine.set_faults(Fault(FaultKind.TRUNCATED_BODY))
    with pytest.raises(http.client.IncompleteRead):
        ask(engine)


def test_an_aborted_answer_holds_a_beginning_of_the_right_one(engine: FakeEngine) -> None:
    whole = choice(engine, request_id="x")
    engine.reset()
    engine.set_faults(Fault(FaultKind.ABORT))
    part = choice(engine, request_id="x")
    kept = len(part["token_ids"])
    assert part["finish_reason"] == "abort"
    assert 0 < kept < len(whole["token_ids"])
    assert part["token_ids"] == whole["token_ids"][:kept]
    assert {len(values) for values in part["logprobs"].values()} == {kept}
    assert (engine.stats().completions, engine.stats().tokens) == (0, kept)


def test_a_client_that_goes_away_ends_its_request(engine: FakeEngine) -> None:
    engine.set_faults(Fault(FaultKind.HANG))
    connection = http.client.HTTPConnection("127.0.0.1", int(engine.url.rpartition(":")[2]))
    connection.request("POST", "/v1/completions", b"{}")
    until(lambda: engine.stats().in_flight == 1)
    connection.close()
    until(lambda: engine.stats().in_flight == 0)


@pytest.mark.parametrize("body", [b"", b"{", b'[{"kind": "unheard of"}]'])
def test_a_plan_that_cannot_be_read_is_refused(engine: FakeEngine, body: bytes) -> None:
    with pytest.raises(urllib.error.HTTPError, match="400") as caught:
        urllib.request.urlopen(f"{engine.url}/faults", body)
    caught.value.close()


def test_a_fault_hits_the_first_tries_of_each_request_that_it_matches() -> None:
    plan = FaultPlan([Fault(FaultKind.ERROR_500, "task-1", times=2), Fault(FaultKind.ABORT, "/b")])
    tries = [plan.strike(name) for name in ["task-1/a", "task-2/a", "task-1/b"] * 4]
    kinds = [fault and fault.kind for fault in tries]
    assert kinds[0::3] == ["error_500", "error_500", None, None]
    assert kinds[1::3] == [None] * 4
    assert kinds[2::3] == ["error_500", "error_500", "abort", None]


def test_a_fault_without_times_never_ends() -> None:
    plan = FaultPlan([Fault(FaultKind.HANG, times=0)])
    assert all(plan.strike("x") for _ in range(100))


def test_a_rate_hits_its_share_of_requests_and_always_the_same_ones() -> None:
    faults = [Fault(FaultKind.HANG, times=0, rate=0.3)]
    names = [f"task-{n}/0" for n in range(2000)]
    hit = [FaultPlan(faults).strike(name) is not None for name in names]
    plan = FaultPlan(faults)
    assert hit == [plan.strike(name) is not None for name in names]
    assert 500 < sum(hit) < 700


def test_a_plan_is_json() -> None:
    fault = Fault(FaultKind.RATE_LIMIT, "x", times=3, rate=0.5, seconds=1, retry_after=2)
    assert msgspec.json.decode(msgspec.json.encode(fault), type=Fault) == fault


# --- the process


def test_a_killed_engine_comes_back_on_its_port_with_its_plan() -> None:
    with FakeEngine() as engine:
        url, pid = engine.url, engine.pid
        engine.set_faults(Fault(FaultKind.ERROR_500))
        engine.kill()
        assert not alive(pid)
        with pytest.raises(FakeEngineError, match="not running"):
            engine.stats()
        engine.start()
        assert engine.url == url
        with pytest.raises(urllib.error.HTTPError, match="500") as caught:
            ask(engine)
        caught.value.close()
        engine.restart()
        assert (engine.url, engine.stats().requests) == (url, 0)


def test_leaving_the_block_reaps_the_process_also_if_it_was_killed_by_others() -> None:
    with FakeEngine() as engine:
        pid = engine.pid
        os.kill(pid, signal.SIGKILL)
    assert not alive(pid)
    engine.stop()


def test_an_engine_that_does_not_start_says_why(engine: FakeEngine) -> None:
    taken = FakeEngine(port=int(engine.url.rpartition(":")[2]))
    with pytest.raises(FakeEngineError, match=r"did not start: it ended(.|\n)*in use"):
        taken.start()
    with pytest.raises(FakeEngineError, match="not running"):
        _ = taken.pid


def test_the_process_ends_when_the_one_that_started_it_dies() -> None:
    script = (
        "import os, signal\n"
        "from holdfast.testing import FakeEngine\n"
        "print(FakeEngine().start().pid, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    parent = subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, check=False)
    pid = int(parent.stdout)
    until(lambda: not alive(pid) or _is_zombie(pid))


def _is_zombie(pid: int) -> bool:
    """A container's first process may never reap the orphans it is given."""
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def test_it_can_be_started_by_hand() -> None:
    command = [sys.executable, "-m", "holdfast.testing.fake_engine", "--model", "mine"]
    command += ["--reply", "yes", "--delay", "0.01", "--faults", '[{"kind": "abort"}]']
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        ready, url = process.stdout.readline().split()
        with urllib.request.urlopen(f"{url}/v1/models") as response:
            served = json.load(response)["data"][0]["id"]
        process.terminate()
    assert (ready, served) == ("ready", "mine")


def test_importing_the_handle_does_not_import_aiohttp() -> None:
    script = "import sys, holdfast.testing as t; t.FakeEngine; print('aiohttp' in sys.modules)"
    process = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    assert process.stdout.strip() == b"False"
