"""What vLLM 0.32 said, as recorded, is what we parse and what the fake engine says."""

import json
import urllib.error
import urllib.request
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.policy import answer
from holdfast.policy.policy import Request
from holdfast.records.errors import EngineUnavailable
from holdfast.records.sampling import Sampling
from holdfast.records.tokens import unpack_ids, unpack_logprobs
from holdfast.testing import FakeEngine

WIRE = Path(__file__).parent.parent / "wire"


@pytest.fixture(scope="module")
def tiny() -> Iterator[FakeEngine]:
    with FakeEngine(model="tiny", max_model_len=2048) as engine:
        yield engine


def recorded(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((WIRE / f"{name}.json").read_text())
    return found


def ask(engine: FakeEngine, exchange: dict[str, Any]) -> tuple[int, Any]:
    request = urllib.request.Request(
        engine.url + exchange["path"],
        None if exchange["body"] is None else json.dumps(exchange["body"]).encode(),
        exchange["headers"] or {},
    )
    try:
        with urllib.request.urlopen(request) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def shape(value: object) -> object:
    """The keys and the types, without the values; of lists, the first element."""
    if isinstance(value, dict):
        return {key: shape(inner) for key, inner in value.items()}
    return [shape(inner) for inner in value[:1]] if isinstance(value, list) else type(value)


def request_of(body: dict[str, Any]) -> Request:
    return Request(array("i", body["prompt"]), Sampling(body["max_tokens"]), body["seed"], "r")


def test_a_recorded_answer_is_read_to_its_exact_ids_and_logprobs() -> None:
    exchange = recorded("completions_ids_logprobs0")
    completion = answer.read(
        json.dumps(exchange["response"]).encode(),
        request_of(exchange["request"]["body"]),
        model="tiny",
        tries=1,
        seconds=0.0,
    )
    assert unpack_ids(completion.ids).tolist() == [1397, 1961, 1203, 1541]
    # vLLM's logprobs are float32 written out: they survive our float32 without a change.
    assert unpack_logprobs(completion.logprobs).tolist() == [
        -7.926401615142822,
        -7.6821370124816895,
        -7.380552291870117,
        -7.664452075958252,
    ]
    assert completion.finish_reason == "length"


def test_a_recorded_abort_is_the_engines_failure() -> None:
    response = recorded("abort_completions")["response"]
    response["choices"][0]["logprobs"] = None  # left out where it was recorded
    prompt = array("i", response["choices"][0]["prompt_token_ids"])
    with pytest.raises(EngineUnavailable, match="abort"):
        answer.read(
            json.dumps(response).encode(),
            Request(prompt, Sampling(200), 1, "r"),
            model="tiny",
            tries=1,
            seconds=0.0,
        )


def test_the_fake_engine_answers_in_the_recorded_shape(tiny: FakeEngine) -> None:
    exchange = recorded("completions_ids_logprobs0")
    body = exchange["request"]["body"]
    body["prompt"] = list(b"its own vocabulary")
    status, said = ask(tiny, exchange["request"])
    expected = exchange["response"]
    # Objects whose keys are tokens differ by their keys, and nothing else may.
    for one in (said, expected):
        logprobs = one["choices"][0]["logprobs"]
        logprobs["top_logprobs"] = [list(top.values()) for top in logprobs["top_logprobs"]]
    assert (status, shape(said)) == (200, shape(expected))
    assert list(said) == list(expected)
    assert said["choices"][0]["prompt_token_ids"] == body["prompt"]


def test_the_fake_engine_honours_the_request_id_and_gives_ids_only_when_asked(
    tiny: FakeEngine,
) -> None:
    exchange = recorded("x_request_id")
    exchange["request"]["body"]["prompt"] = [1, 2, 3]
    status, said = ask(tiny, exchange["request"])
    assert (status, shape(said)) == (200, shape(exchange["response"]))
    assert said["id"] == exchange["response"]["id"] == "cmpl-abc-1"


def test_the_fake_engine_lists_its_model_in_the_recorded_shape(tiny: FakeEngine) -> None:
    exchange = recorded("models")
    status, said = ask(tiny, exchange["request"])
    assert (status, shape(said)) == (200, shape(exchange["response"]))
    assert said["data"][0]["id"] == "tiny"


@pytest.mark.parametrize(
    "name", ["err_too_long", "err_unknown_model", "err_bad_param", "err_bad_token_id"]
)
def test_the_fake_engine_refuses_in_the_recorded_words(tiny: FakeEngine, name: str) -> None:
    exchange = recorded(name)
    assert ask(tiny, exchange["request"]) == (exchange["status"], exchange["response"])


@pytest.mark.parametrize("body", [{"model": "tiny"}, {"model": "tiny", "prompt": {}}, [], "x"])
def test_the_fake_engine_refuses_a_malformed_body_in_the_recorded_shape(
    tiny: FakeEngine, body: object
) -> None:
    exchange = recorded("err_malformed")
    status, said = ask(tiny, {"path": "/v1/completions", "body": body, "headers": None})
    assert (status, shape(said)) == (exchange["status"], shape(exchange["response"]))
    assert said["error"]["type"] == exchange["response"]["error"]["type"]
