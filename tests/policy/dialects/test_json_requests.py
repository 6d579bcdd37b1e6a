"""A reply that is kept to JSON: each engine is asked in its own words, and none is believed."""

import asyncio
import json
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.policy.client.replicas import EnginePolicy
from holdfast.policy.dialects import DIALECTS
from holdfast.policy.dialects.dialect import Kind, one_try
from holdfast.policy.policy import Completion, Partial, Request
from holdfast.policy.rendering.renderer import ByteRenderer
from holdfast.records.encoding.tokens import unpack_ids
from holdfast.records.errors import BadRequest, Unsupported
from holdfast.records.message import user
from holdfast.records.sampling import Sampling, schema_text
from holdfast.testing import FakeEngine, Fault, FaultKind
from holdfast.testing.fake_engine.options import Dialect
from support.policy.answers import models
from support.policy.canned_server import Answer, Canned
from support.policy.clients import policy_at
from support.policy.drafts import Kept
from support.policy.fake_engines import QUICK, request, sample, sample_now

SCHEMA: dict[str, object] = {
    "type": "object",
    "properties": {
        "z": {"type": "integer"},
        "kind": {"enum": ["red", "green"]},
        "list": {"type": "array", "items": {"type": "boolean"}, "minItems": 2},
    },
    "required": ["z", "kind", "list"],
    "additionalProperties": False,
}
ENGINES: dict[Kind, Dialect] = {
    Kind.VLLM: "vllm",
    Kind.VLLM_GENERATE: "vllm-scale-out",
    Kind.SGLANG: "sglang",
    Kind.FIREWORKS: "fireworks",
}


def json_request(wanted: bool | str, *, name: str = "r") -> Request:
    return replace(request(name), sampling=Sampling(200, json=wanted))


def text_of(completion: Completion) -> str:
    return ByteRenderer().decode(unpack_ids(completion.ids))


def is_of_schema(result: Any) -> bool:
    return (
        list(result) == ["z", "kind", "list"]
        and isinstance(result["z"], int)
        and result["kind"] in ("red", "green")
        and len(result["list"]) >= 2
        and all(isinstance(item, bool) for item in result["list"])
    )


@pytest.mark.parametrize("kind", ENGINES)
def test_every_engine_that_gives_tokens_is_asked_in_its_own_words(kind: Kind) -> None:
    with FakeEngine(dialect=ENGINES[kind]) as engine:
        (anything, fitting, again, free) = (
            sample_now(engine, item, kind=kind)
            for item in (
                json_request(True),
                json_request(schema_text(SCHEMA)),
                json_request(schema_text(SCHEMA)),
                json_request(False),
            )
        )
        schemas = [call.schema for call in engine.calls()]
    assert isinstance(json.loads(text_of(anything)), dict)
    assert is_of_schema(json.loads(text_of(fitting)))
    assert fitting.ids == again.ids
    assert (fitting.finish_reason, schemas[1], schemas[3]) == ("stop", SCHEMA, None)
    with pytest.raises(ValueError, match="Expecting value"):
        json.loads(text_of(free))


@pytest.mark.parametrize(
    ("kind", "path", "wanted"),
    [
        (Kind.VLLM, ("response_format", "json_schema", "schema"), SCHEMA),
        (Kind.FIREWORKS, ("response_format", "json_schema", "schema"), SCHEMA),
        (Kind.CHAT, ("response_format", "json_schema", "schema"), SCHEMA),
        (Kind.VLLM_GENERATE, ("sampling_params", "structured_outputs", "json"), SCHEMA),
        (Kind.SGLANG, ("sampling_params", "json_schema"), schema_text(SCHEMA)),
    ],
)
def test_the_schema_stands_where_the_engine_looks_for_it(
    kind: Kind, path: tuple[str, ...], wanted: object
) -> None:
    fields: Any = _body(kind, schema_text(SCHEMA))
    for name in path:
        fields = fields[name]
    assert fields == wanted


@pytest.mark.parametrize("kind", list(Kind))
def test_nothing_is_said_of_json_to_an_engine_that_is_not_asked_for_it(kind: Kind) -> None:
    body = json.dumps(_body(kind, False), default=str)
    assert not any(word in body for word in ("response_format", "structured", "json"))


def _body(kind: Kind, wanted: bool | str) -> dict[str, Any]:
    item = json_request(wanted)
    return DIALECTS[kind].body(one_try(item, "m", max_tokens=8))


def test_a_chat_engine_is_asked_for_json_and_for_an_effort() -> None:
    async def main(engine: FakeEngine) -> Completion:
        policy = EnginePolicy(engine.url, engine.model, retry=QUICK)
        await policy.check()
        sampling = Sampling(200, json=schema_text(SCHEMA), reasoning_effort="high")
        changed = replace(request(), sampling=sampling, messages=(user("say"),))
        return await sample(policy, changed)

    with FakeEngine(dialect="chat") as engine:
        message = asyncio.run(main(engine)).message
        (call,) = engine.calls()
    assert message is not None
    assert is_of_schema(json.loads(message.text))
    assert (call.schema, call.effort) == (SCHEMA, "high")


@pytest.mark.parametrize("kind", ENGINES)
@pytest.mark.parametrize("what", [FaultKind.STREAM_CUT, FaultKind.ABORT])
def test_a_reply_that_breaks_off_is_sampled_anew_since_its_format_begins_anew(
    kind: Kind, what: FaultKind
) -> None:
    kept = Kept()
    item = json_request(schema_text(SCHEMA))
    with FakeEngine(dialect=ENGINES[kind]) as engine:
        undisturbed = sample_now(engine, item, kind=kind)
        engine.set_faults(Fault(what, times=2, after=9))
        for partial in (None, Partial(kept.save, 1)):
            disturbed = sample_now(engine, replace(item, partial=partial), kind=kind)
            assert disturbed.ids == undisturbed.ids
            assert (disturbed.seams, kept.drafts) == ((), [])
            engine.set_faults(Fault(what, times=2, after=9))


def test_what_an_engine_cannot_keep_to_is_the_requests_fault() -> None:
    with FakeEngine() as engine, pytest.raises(BadRequest, match="Invalid type: nonsense"):
        sample_now(engine, json_request(schema_text({"type": "nonsense"})))


async def test_the_embedded_engine_is_not_even_asked() -> None:
    async with Canned() as server:
        server.always("/v1/models", models(owned_by="holdfast"))
        server.always(DIALECTS[Kind.VLLM_GENERATE].path, Answer(400, {"error": "no"}))
        async with policy_at(server, kind=None) as policy:
            await policy.check()
            before = len(server.requests)
            with pytest.raises(Unsupported, match="the embedded engine") as refused:
                await policy.sample(json_request(True))
            assert refused.value.what == "json"
            assert len(server.requests) == before
