"""The shapes of vLLM's API against recordings of a real one: key by key, in order."""

import json
from typing import Any

import msgspec
import pytest

from holdfast.engine_api import errors
from holdfast.engine_api.errors import EngineRequestRejected
from holdfast.engine_api.requests import (
    ChatRequest,
    CompletionsRequest,
    GenerateRequest,
    decode,
    ends_with_usage,
)
from holdfast.engine_api.responses import (
    ChatShape,
    ChoiceOutput,
    CompletionsShape,
    GenerateShape,
    ResponseShape,
    TokenScore,
    model_list,
    usage,
)
from support.paths import WIRE


def recorded(name: str) -> dict[str, Any]:
    data: dict[str, Any] = json.loads((WIRE / f"{name}.json").read_text())
    return data


def shape_of(kind: type[ResponseShape], *, usage_chunk: bool = False) -> ResponseShape:
    return kind(request_id="1", model="tiny", created=0, fingerprint="f", usage_chunk=usage_chunk)


def outline(value: object) -> object:
    """Keys in their order, all the way down; of lists, the first element."""
    if isinstance(value, dict):
        return [(name, outline(inner)) for name, inner in value.items()]
    return [outline(item) for item in value[:1]] if isinstance(value, list | tuple) else None


def output(**changes: Any) -> ChoiceOutput:
    candidate = TokenScore(5, "a", -1.0)
    score = msgspec.structs.replace(candidate, top=(candidate,))
    values = {"text": "a", "scores": [score], "token_ids": [5], "prompt_token_ids": [6], **changes}
    return ChoiceOutput(**values)


@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("completions_stream", CompletionsRequest),
        ("chat_stream", ChatRequest),
        ("generate", GenerateRequest),
    ],
)
def test_a_recorded_request_is_decoded_to_the_last_field(name: str, body: type[Any]) -> None:
    request = recorded(name)["request"]["body"]
    assert request.keys() <= set(body.__struct_fields__)
    assert ends_with_usage(decode(json.dumps(request).encode(), body)) is (name != "generate")


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("completions_ids_logprobs0", CompletionsShape),
        ("chat_logprobs_token_ids", ChatShape),
        ("generate", GenerateShape),
    ],
)
def test_a_whole_response(name: str, kind: type[ResponseShape]) -> None:
    theirs = recorded(name)["response"]
    sampled = output(finish_reason="length")
    if kind is GenerateShape:
        sampled.prompt_token_ids = theirs["prompt_token_ids"]
        sampled.weight_versions = theirs["choices"][0]["weight_versions"]
    ours = shape_of(kind).whole([sampled], usage(1, 1))
    for response in (ours, theirs):
        hide_candidates(response)
    assert outline(ours) == outline(theirs)


def hide_candidates(response: dict[str, Any]) -> None:
    """Their names are texts of tokens, and their number differs."""
    for choice in response["choices"]:
        logprobs = choice["logprobs"] or {}
        for block in (logprobs, *logprobs.get("content", [])):
            if "top_logprobs" in block:
                block["top_logprobs"] = []


@pytest.mark.parametrize(
    ("name", "kind"), [("completions_stream", CompletionsShape), ("chat_stream", ChatShape)]
)
def test_the_chunks_of_a_stream(name: str, kind: type[ResponseShape]) -> None:
    lines = recorded(name)["response"].strip().split("\n\n")
    theirs = [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]
    shape = shape_of(kind, usage_chunk=True)
    ours = [
        *shape.opening(0, [6]),
        shape.chunk(output()),
        shape.chunk(output(prompt_token_ids=None)),
        shape.chunk(output(prompt_token_ids=None)),
        shape.chunk(output(finish_reason="length", prompt_token_ids=None)),
        *shape.closing(usage(1, 4)),
    ]
    for chunk in (*ours, *theirs):
        hide_candidates(chunk)
    assert [outline(chunk) for chunk in ours] == [outline(chunk) for chunk in theirs]


def test_the_list_of_models() -> None:
    ours = model_list("tiny", created=0, owner="vllm", root="/m", max_model_len=8)
    assert outline(ours) == outline(recorded("models")["response"])


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("err_bad_param", errors.invalid_parameter("temperature", "non-negative", -3.0)),
        ("err_bad_token_id", errors.out_of_vocabulary(999999)),
        ("err_unknown_model", errors.unknown_model("nope", "tiny")),
        ("err_too_long", errors.too_long(2048, 3000, 16)),
        ("generate_disabled", errors.scale_out_disabled()),
    ],
)
def test_errors_have_the_recorded_bodies(name: str, error: EngineRequestRejected) -> None:
    theirs = recorded(name)
    assert (error.status, error.body) == (theirs["status"], theirs["response"])


def test_a_missing_field_is_named() -> None:
    with pytest.raises(EngineRequestRejected) as raised:
        decode(b'{"model": "tiny"}', CompletionsRequest)
    assert raised.value.body["error"]["param"] == "body.prompt"
