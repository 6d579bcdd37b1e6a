"""What vLLM 0.32 said, as recorded, is what the fake engine says."""

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from holdfast.testing import FakeEngine
from support.paths import WIRE


@pytest.fixture(scope="module")
def tiny() -> Iterator[FakeEngine]:
    with FakeEngine(model="tiny", max_model_len=2048, describes=False) as engine:
        yield engine


def recorded(name: str) -> dict[str, Any]:
    data: dict[str, Any] = json.loads((WIRE / f"{name}.json").read_text())
    return data


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


def test_the_fake_engine_answers_in_the_recorded_shape(tiny: FakeEngine) -> None:
    exchange = recorded("completions_ids_logprobs0")
    body = exchange["request"]["body"]
    body["prompt"] = list(b"its own vocabulary")
    status, message = ask(tiny, exchange["request"])
    expected = exchange["response"]
    # Objects whose keys are tokens differ by their keys, and nothing else may.
    for item in (message, expected):
        logprobs = item["choices"][0]["logprobs"]
        logprobs["top_logprobs"] = [list(top.values()) for top in logprobs["top_logprobs"]]
    assert (status, shape(message)) == (200, shape(expected))
    assert list(message) == list(expected)
    assert message["choices"][0]["prompt_token_ids"] == body["prompt"]


def test_the_fake_engine_honours_the_request_id_and_gives_ids_only_when_asked(
    tiny: FakeEngine,
) -> None:
    exchange = recorded("x_request_id")
    exchange["request"]["body"]["prompt"] = [1, 2, 3]
    status, message = ask(tiny, exchange["request"])
    assert (status, shape(message)) == (200, shape(exchange["response"]))
    assert message["id"] == exchange["response"]["id"] == "cmpl-abc-1"


def test_the_fake_engine_lists_its_model_in_the_recorded_shape(tiny: FakeEngine) -> None:
    exchange = recorded("models")
    status, message = ask(tiny, exchange["request"])
    assert (status, shape(message)) == (200, shape(exchange["response"]))
    assert message["data"][0]["id"] == "tiny"


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
    status, message = ask(tiny, {"path": "/v1/completions", "body": body, "headers": None})
    assert (status, shape(message)) == (exchange["status"], shape(exchange["response"]))
    assert message["error"]["type"] == exchange["response"]["error"]["type"]
