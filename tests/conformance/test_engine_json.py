"""A reply that is kept to JSON, from every engine that can; those that cannot say so at once."""

import json
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.policy.policy import Completion, Request
from holdfast.records.errors import BadRequest, Unsupported
from holdfast.records.sampling import Sampling, schema_text
from support.conformance.engines import Engine
from support.conformance.samples import (
    assert_well_formed,
    drawn,
    ids,
    logprobs,
    plain_text,
    request,
    streamed,
)

SCHEMA: dict[str, object] = {
    "type": "object",
    "properties": {
        "zeal": {"type": "boolean"},
        "kind": {"enum": ["red", "green"]},
        "list": {"type": "array", "items": {"enum": [1, 2]}, "minItems": 2, "maxItems": 2},
    },
    "required": ["zeal", "kind", "list"],
    "additionalProperties": False,
}
LONGEST_REPLY = 400
"""White space between the parts of a reply is the model's to choose."""


def kept_to(engine: Engine, wanted: bool | dict[str, object], *, seed: int = 1) -> Request:
    schema = schema_text(wanted) if isinstance(wanted, dict) else wanted
    body = request(engine, seed, stop_token_ids=engine.renderer.stop_token_ids)
    return replace(body, sampling=Sampling(LONGEST_REPLY, json=schema))


def parsed(engine: Engine, completion: Completion) -> Any:
    assert_well_formed(completion, max_tokens=LONGEST_REPLY)
    assert completion.finish_reason == "stop"
    return json.loads(plain_text(engine, ids(completion)))


def test_a_reply_fits_the_schema_whole_and_streamed(engine: Engine) -> None:
    _skip_if_it_cannot(engine)
    requests = [kept_to(engine, SCHEMA, seed=seed) for seed in range(4)]
    replies = drawn(engine, *requests)
    for completion in replies:
        result = parsed(engine, completion)
        assert list(result) == ["zeal", "kind", "list"]
        assert isinstance(result["zeal"], bool)
        assert result["kind"] in ("red", "green")
        assert len(result["list"]) == 2
        assert set(result["list"]) <= {1, 2}
    for item, other in zip(drawn(engine, *map(streamed, requests)), replies, strict=True):
        assert ids(item) == ids(other)
        assert item.seams == ()


def test_any_object_is_json(engine: Engine) -> None:
    _skip_if_it_cannot(engine)
    # A small model may go on and on inside of an object: what counts is what came to its end.
    requests = [kept_to(engine, True, seed=seed) for seed in range(8)]
    ended = [item for item in drawn(engine, *requests) if item.finish_reason == "stop"]
    assert ended
    for completion in ended:
        assert isinstance(parsed(engine, completion), dict | list)


def test_logprobs_are_of_the_distribution_that_the_schema_leaves(engine: Engine) -> None:
    """Where the schema leaves one token, it is certain."""
    _skip_if_it_cannot(engine)
    if engine.name.startswith("fake"):
        pytest.skip("the logprobs of a fake engine are made up")
    only = {"const": "the only thing that can be said"}
    (completion,) = drawn(engine, kept_to(engine, only))
    assert parsed(engine, completion) == only["const"]
    certain = sum(score > -1e-3 for score in logprobs(completion))
    assert certain >= 1
    assert max(logprobs(completion)) <= 0


def test_a_schema_that_is_none_is_the_requests_fault(engine: Engine) -> None:
    _skip_if_it_cannot(engine)
    with pytest.raises(BadRequest, match="nonsense"):
        drawn(engine, kept_to(engine, {"type": "nonsense"}))


def test_an_engine_that_cannot_is_not_asked(engine: Engine) -> None:
    if engine.can.keeps_to_json:
        pytest.skip("it can")
    sampled = engine.server.sampled()
    with pytest.raises(Unsupported, match="cannot keep a reply to JSON"):
        drawn(engine, kept_to(engine, SCHEMA))
    assert engine.server.sampled() == sampled


def _skip_if_it_cannot(engine: Engine) -> None:
    if not engine.can.keeps_to_json:
        pytest.skip("it cannot keep a reply to JSON")
