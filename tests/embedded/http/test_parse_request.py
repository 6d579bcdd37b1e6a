"""Every bad request is refused with its status, and named; nothing is passed over in silence."""

from typing import Any

import msgspec
import pytest

from holdfast.embedded.http import server
from holdfast.embedded.scheduler.engine import DecodeEngine
from support.embedded.client import NAME, Client, completion, serving
from support.embedded.requests import body_for, through
from support.paths import WIRE

PATH = "/v1/completions"


def recorded(name: str) -> dict[str, Any]:
    answer: dict[str, Any] = msgspec.json.decode((WIRE / name).read_bytes())
    return answer


@pytest.mark.parametrize(
    "name", ["err_bad_param.json", "err_bad_token_id.json", "err_unknown_model.json"]
)
def test_vllms_own_errors_to_the_letter(engine: DecodeEngine, name: str) -> None:
    theirs = recorded(name)
    path, body = theirs["request"]["path"], theirs["request"]["body"]
    status, answer = through(engine, lambda client: client.post(path, body))
    assert (status, answer) == (theirs["status"], theirs["response"])


def test_too_long_is_told_as_vllm_tells_it(engine: DecodeEngine) -> None:
    theirs = recorded("err_too_long.json")["response"]["error"]
    limit = engine.model.max_length

    async def ask(client: Client) -> Any:
        prompts = [[5] * (limit + 1), [5] * limit, [5] * (limit - 7)]
        return [await client.post(PATH, completion(prompt=prompt)) for prompt in prompts]

    for status, answer in through(engine, ask):
        error = answer["error"]
        assert (status, error["code"]) == (400, 400)
        assert (error["type"], error["param"]) == (theirs["type"], theirs["param"])
        assert f"maximum context length is {limit} tokens" in error["message"]


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"n": 0}, "n"),
        ({"n": 1.5}, "body.n"),
        ({"n": True}, "body.n"),
        ({"n": 10_000}, "n"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": "hot"}, "body.temperature"),
        ({"temperature": 1e-320}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_p": 1.01}, "top_p"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": "many"}, "body.max_tokens"),
        ({"seed": 1 << 63}, "seed"),
        ({"logprobs": 21}, "logprobs"),
        ({"logprobs": -1}, "logprobs"),
        ({"stop": ""}, "stop"),
        ({"stop": [1]}, "body.stop"),
        ({"stop_token_ids": "2"}, "body.stop_token_ids"),
        ({"stream": "yes"}, "body.stream"),
        ({"stream_options": []}, "body.stream_options"),
        ({"stream_options": {"what": 1}}, "stream_options.what"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [[]]}, "prompt"),
        ({"prompt": ["a", 5]}, "body.prompt"),
        ({"prompt": {"a": 5}}, "body.prompt"),
        ({"prompt": ...}, "body.prompt"),
        ({"model": ...}, "body.model"),
        ({"best_of": 2}, "best_of"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"logit_bias": {"5": "x"}}, "body.logit_bias"),
        ({"use_beam_search": True}, "use_beam_search"),
        ({"echo": True}, "echo"),
        ({"top_k": -2}, "top_k"),
        ({"min_p": 1.1}, "min_p"),
        ({"presence_penalty": 2.1}, "presence_penalty"),
        ({"frequency_penalty": -3}, "frequency_penalty"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"min_tokens": 3}, "min_tokens"),
        ({"suffix": "x"}, "suffix"),
        ({"prompt_logprobs": 1}, "prompt_logprobs"),
        ({"response_format": {"type": "json_schema"}}, "response_format"),
        ({"structured_outputs": {"json": {}}}, "structured_outputs"),
        ({"temprature": 1.0}, "temprature"),
    ],
    ids=str,
)
def test_a_bad_parameter_is_named(
    engine: DecodeEngine, changes: dict[str, Any], param: str
) -> None:
    status, answer = through(engine, lambda c: c.post(PATH, completion(**changes)))
    assert (status, answer["error"]["param"], answer["error"]["code"]) == (400, param, 400)
    assert engine.running == engine.waiting == 0


@pytest.mark.parametrize("digits", [400, 5000])
@pytest.mark.parametrize("sign", ["", "-"])
@pytest.mark.parametrize("name", ["temperature", "top_p", "n", "max_tokens", "seed"])
def test_a_number_beyond_all_bounds_is_refused(
    engine: DecodeEngine, name: str, sign: str, digits: int
) -> None:
    rest = msgspec.json.encode(completion(**{name: ...}))
    raw = rest[:-1] + f', "{name}": {sign}1{"0" * digits}}}'.encode()
    status, answer = through(engine, lambda client: client.post(PATH, raw))
    assert (status, answer["error"]["code"]) == (400, 400)


@pytest.mark.parametrize("calls", [3, True, {"a": 1}, "x", [3], [{"function": 3}]], ids=str)
def test_tool_calls_that_are_none_are_refused(engine: DecodeEngine, calls: Any) -> None:
    message = {"role": "assistant", "content": "", "tool_calls": calls}
    body = {"model": NAME, "messages": [message]}
    status, answer = through(engine, lambda c: c.post("/v1/chat/completions", body))
    assert (status, answer["error"]["param"]) == (400, "body.messages.tool_calls")


def test_parameters_that_say_nothing_are_accepted(engine: DecodeEngine) -> None:
    neutral = {
        "best_of": 1, "echo": False, "top_k": -1, "min_p": 0.0, "presence_penalty": 0.0,
        "frequency_penalty": 0, "repetition_penalty": 1.0, "logit_bias": None, "suffix": None,
        "user": "someone", "response_format": {"type": "text"}, "stream_options": None,
    }  # fmt: skip
    answer = through(engine, lambda client: client.complete(**neutral))
    assert answer["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"token_ids": []}, "body.token_ids"),
        ({"token_ids": "x"}, "body.token_ids"),
        ({"sampling_params": 3}, "body.sampling_params"),
        ({"sampling_params": {"min_tokens": 5}}, "sampling_params.min_tokens"),
        ({"sampling_params": {"max_tokens": 0}}, "max_tokens"),
        ({"sampling_params": {"n": 0}}, "n"),
        ({"output_mode": "text"}, "output_mode"),
        ({"features": {}}, "features"),
    ],
    ids=str,
)
def test_generate_names_what_is_bad(
    engine: DecodeEngine, changes: dict[str, Any], param: str
) -> None:
    path = "/inference/v1/generate"
    status, answer = through(engine, lambda c: c.post(path, {**body_for(path), **changes}))
    assert (status, answer["error"]["param"]) == (400, param)


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b'"x"', b"[" * 100_000, b"\xff"])
@pytest.mark.parametrize(
    "path", [PATH, "/v1/chat/completions", "/inference/v1/generate", "/update_weights_from_disk"]
)
def test_what_is_no_json_object_is_refused(engine: DecodeEngine, path: str, raw: bytes) -> None:
    status, answer = through(engine, lambda client: client.post(path, raw))
    assert (status, answer["error"]["param"]) == (400, "body")


def test_unknown_paths_and_methods(engine: DecodeEngine) -> None:
    async def ask(client: Client) -> Any:
        missing = await client.post("/v1/embeddings", {})
        return missing, await client.get(PATH)

    (status, answer), (method, _) = through(engine, ask)
    assert (status, answer["error"]["code"]) == (404, 404)
    assert method == 405


def test_a_body_that_is_too_large(engine: DecodeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "MAX_BODY_BYTES", 1000)
    status, answer = through(engine, lambda c: c.post(PATH, completion(prompt="x" * 2000)))
    assert (status, answer["error"]["code"]) == (413, 413)


async def test_with_a_key_everything_but_health_needs_it(engine: DecodeEngine) -> None:

    async with serving(engine, api_key="s3cret") as client:
        assert (await client.get("/health"))[0] == 200
        for path in ("/v1/models", "/metrics", "/weight_version", "/nowhere"):
            assert (await client.get(path))[0] == 401
        for headers in ({}, {"Authorization": "Bearer s3cre"}, {"Authorization": "s3cret"}):
            status, answer = await client.post(PATH, completion(), **headers)
            assert (status, answer["error"]["code"]) == (401, 401)
        await client.ok(PATH, completion(), Authorization="Bearer s3cret")
