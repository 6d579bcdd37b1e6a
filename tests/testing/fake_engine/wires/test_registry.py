"""What each dialect serves, and what it does not: enough to tell one engine from another."""

import asyncio
import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any, get_args

import pytest

from holdfast.testing import FakeEngine
from holdfast.testing.fake_engine.options import Dialect
from support.testing.http_client import MESSAGES, PROMPT, ask, body, send

SAMPLING = ["/v1/completions", "/v1/chat/completions", "/inference/v1/generate", "/generate"]
ASIDE = ["/version", "/health", "/metrics", "/server_info", "/model_info", "/get_model_info"]
OFFERED = {
    "vllm": {"/v1/completions", "/v1/chat/completions", "/version", "/health", "/metrics",
             "/server_info"},
    "vllm-scale-out": {"/v1/completions", "/v1/chat/completions", "/inference/v1/generate",
                       "/version", "/health", "/metrics", "/server_info"},
    "sglang": {"/generate", "/health", "/server_info", "/model_info", "/get_model_info"},
    "fireworks": {"/v1/completions"},
    "chat": {"/v1/chat/completions"},
}  # fmt: skip


@pytest.fixture(scope="module")
def engines() -> Iterator[dict[str, FakeEngine]]:
    results = {name: FakeEngine(dialect=name, max_model_len=2048) for name in get_args(Dialect)}
    try:
        for engine in results.values():
            engine.start()
        yield results
    finally:
        for engine in results.values():
            engine.stop()


def status_of(engine: FakeEngine, path: str, data: bytes | None = None) -> int:
    try:
        with urllib.request.urlopen(f"{engine.url}{path}", data, timeout=20) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def got(engine: FakeEngine, path: str) -> Any:
    with urllib.request.urlopen(f"{engine.url}{path}", timeout=20) as response:
        return json.load(response)


@pytest.mark.parametrize("dialect", OFFERED)
def test_a_dialect_serves_its_own_endpoints_alone(
    engines: dict[str, FakeEngine], dialect: str
) -> None:
    engine = engines[dialect]
    # An empty body is a bad request where there is an endpoint, and 404 where there is none.
    result = {path for path in SAMPLING if status_of(engine, path, b"{}") == 400}
    result |= {path for path in ASIDE if status_of(engine, path) == 200}
    assert result == OFFERED[dialect]


@pytest.mark.parametrize("dialect", OFFERED)
def test_a_dialect_lists_its_model(engines: dict[str, FakeEngine], dialect: str) -> None:
    engine = engines[dialect]
    (listed,) = got(engine, "/v1/models")["data"]
    assert listed["id"] == engine.model
    owners = {"sglang": "sglang", "fireworks": "fireworks", "chat": "openai"}
    assert listed["owned_by"] == owners.get(dialect, "vllm")
    length = listed.get("max_model_len") or listed.get("context_length")
    assert length == (None if dialect == "chat" else 2048)


def test_an_engine_says_that_a_seed_holds_by_position_unless_told_not_to(
    engines: dict[str, FakeEngine],
) -> None:
    for dialect in ("vllm", "vllm-scale-out", "sglang", "fireworks"):
        (listed,) = got(engines[dialect], "/v1/models")["data"]
        assert (listed["seeds"], listed["renderer"]) == ("position", "bytes")
    with FakeEngine(describes=False) as silent:
        (listed,) = got(silent, "/v1/models")["data"]
    assert not {"seeds", "renderer"} & set(listed)


def test_generate_without_its_flag_is_forbidden_not_missing(
    engines: dict[str, FakeEngine],
) -> None:
    assert status_of(engines["vllm"], "/inference/v1/generate", b"{}") == 403


def test_server_info_tells_vllm_from_sglang(engines: dict[str, FakeEngine]) -> None:
    assert "vllm_config" in got(engines["vllm"], "/server_info")
    assert got(engines["sglang"], "/get_server_info")["context_length"] == 2048
    assert got(engines["sglang"], "/model_info")["model_path"] == "fake"
    assert status_of(engines["sglang"], "/health_generate") == 200


# --- SGLang


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"max_tokens": 3}, {"type": "length", "length": 3}),
        ({"stop_token_ids": [ord("y")]}, {"type": "stop", "matched": ord("y")}),
        ({"stop": ["k a"]}, {"type": "stop", "matched": "k a"}),
    ],
)
def test_sglang_says_why_it_stopped(
    engines: dict[str, FakeEngine], fields: dict[str, Any], reason: object
) -> None:
    meta = ask(engines["sglang"], "sglang", **fields).json["meta_info"]
    assert meta["finish_reason"] == reason


def test_sglang_gives_logprob_id_and_text(engines: dict[str, FakeEngine]) -> None:
    engine = engines["sglang"]
    result = ask(engine, "sglang", max_tokens=4).json
    named = ask(engine, "sglang", max_tokens=4, return_text_in_logprobs=True).json
    bare = ask(engine, "sglang", max_tokens=4, return_logprob=False).json
    scored = result["meta_info"]["output_token_logprobs"]
    assert [token for _, token, _ in scored] == result["output_ids"]
    assert {text for _, _, text in scored} == {None}
    assert (
        "".join(
            output_token_logprobs[2]
            for output_token_logprobs in named["meta_info"]["output_token_logprobs"]
        )
        == named["text"]
    )
    assert "output_token_logprobs" not in bare["meta_info"]
    counts = result["meta_info"]
    assert (counts["prompt_tokens"], counts["completion_tokens"]) == (len(PROMPT), 4)


def test_sglang_names_a_request_by_its_rid(engines: dict[str, FakeEngine]) -> None:
    engine = engines["sglang"]
    engine.reset()
    request = body(engine, "sglang", rid="run/task/0")
    answer = asyncio.run(send(engine, "/generate", request, request_id=""))
    assert answer.json["meta_info"]["id"] == "run/task/0"
    assert engine.requests() == [("run/task/0", 0)]


def test_sglang_wants_a_prompt(engines: dict[str, FakeEngine]) -> None:
    answer = asyncio.run(send(engines["sglang"], "/generate", {"sampling_params": {}}))
    assert (answer.status, "input_ids" in answer.json["error"]["message"]) == (400, True)


# --- Fireworks


def test_fireworks_scores_each_token_with_its_id(engines: dict[str, FakeEngine]) -> None:
    engine = engines["fireworks"]
    assert engine.model == "accounts/fireworks/models/fake"
    choice = ask(engine, "fireworks", max_tokens=4).json["choices"][0]
    content = choice["logprobs"]["content"]
    ids = [item["token_id"] for item in content]
    assert ids == choice["token_ids"] == choice["raw_output"]["completion_token_ids"]
    assert all(item["sampling_logprob"] == item["logprob"] < 0 for item in content)
    raw = choice["raw_output"]
    assert raw["prompt_token_ids"] == choice["prompt_token_ids"] == PROMPT
    assert raw["completion"] == choice["text"]


def test_fireworks_gives_only_what_is_asked_for(engines: dict[str, FakeEngine]) -> None:
    engine = engines["fireworks"]
    off = {"return_token_ids": False, "raw_output": False}
    choice = ask(engine, "fireworks", logprobs=None, **off).json["choices"][0]
    for key in ("logprobs", "raw_output", "token_ids", "prompt_token_ids"):
        assert choice[key] is None
    legacy = ask(engine, "fireworks", logprobs=1, max_tokens=4).json["choices"][0]["logprobs"]
    assert len(legacy["token_ids"]) == len(legacy["token_logprobs"]) == 4


def test_fireworks_answers_under_both_of_its_addresses(engines: dict[str, FakeEngine]) -> None:
    engine = engines["fireworks"]
    answer = asyncio.run(send(engine, "/inference/v1/completions", body(engine, "fireworks")))
    assert answer.status == 200
    assert got(engine, "/inference/v1/models") == got(engine, "/v1/models")


def test_a_fireworks_stream_has_its_usage_in_the_last_chunk(
    engines: dict[str, FakeEngine],
) -> None:
    *before, last = ask(engines["fireworks"], "fireworks", stream=True, max_tokens=4).events
    assert [event["usage"] for event in before] == [None] * 3
    assert last["usage"]["completion_tokens"] == 4
    assert [event["choices"][0]["prompt_token_ids"] for event in before] == [PROMPT, None, None]


# --- chat without ids


def test_a_plain_chat_server_ignores_who_asks_for_ids(engines: dict[str, FakeEngine]) -> None:
    engine = engines["chat"]
    request = {"model": engine.model, "messages": MESSAGES, "return_token_ids": True, "seed": 1}
    request |= {"max_tokens": 8, "logprobs": True}
    plain = asyncio.run(send(engine, "/v1/chat/completions", request))
    stream = asyncio.run(send(engine, "/v1/chat/completions", {**request, "stream": True}))
    assert (plain.status, stream.done) == (200, True)
    assert b"token_ids" not in plain.body + stream.body
    choice = plain.json["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("  yk agp", "length")
    pieces = [event["choices"][0]["delta"].get("content", "") for event in stream.events]
    assert "".join(pieces) == "  yk agp"
    assert plain.json["usage"]["completion_tokens"] == 8


def test_a_chat_without_a_limit_may_fill_the_context(engines: dict[str, FakeEngine]) -> None:
    engine = engines["chat"]
    engine.reset()
    asyncio.run(send(engine, "/v1/chat/completions", {"model": engine.model, "messages": MESSAGES}))
    (call,) = engine.calls()
    assert call.max_tokens == 2048 - len(PROMPT)


def test_an_unknown_dialect_is_refused_by_the_command_line() -> None:
    with pytest.raises(Exception, match="dialect"):
        FakeEngine(dialect="nobody").start()  # type: ignore[arg-type]
