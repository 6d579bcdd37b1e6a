"""A reply that has to call a tool, in the markup of its model, from every engine that can; those
that cannot say so at once."""

import json

import pytest
from msgspec.structs import replace

from holdfast.policy.dialects.dialect import Kind
from holdfast.policy.policy import Request
from holdfast.policy.rendering.structure import structure_of
from holdfast.records.errors import Unsupported
from holdfast.records.message import Message
from holdfast.records.sampling import Sampling
from support.conformance.engines import Engine
from support.conformance.samples import assert_well_formed, drawn, ids, request

LONGEST_REPLY = 300


def tool(name: str) -> dict[str, object]:
    properties = {"sky": {"enum": ["clear", "cloudy"]}, "days": {"enum": [1, 2]}}
    schema = {"type": "object", "properties": properties, "required": ["sky", "days"]}
    return {
        "type": "function",
        "function": {"name": name, "parameters": {**schema, "additionalProperties": False}},
    }


TOOLS = [tool("look"), tool("forecast")]


def forced(engine: Engine, choice: str, *, seed: int = 1) -> Request:
    # One call: a small model might go on calling.
    sampling = Sampling(LONGEST_REPLY, tool_choice=choice, parallel_tool_calls=False)
    body = request(engine, seed, stop_token_ids=engine.renderer.stop_token_ids)
    structure = structure_of(engine.renderer, sampling, TOOLS)
    return replace(body, sampling=sampling, structure=structure)


def can_force(engine: Engine) -> bool:
    return engine.can.keeps_to_json and engine.dialect is not Kind.FIREWORKS


@pytest.mark.parametrize("choice", ["required", "tool:forecast"])
def test_a_forced_call_fits_its_tool_and_is_parsed_like_any_other(engine, choice):
    if not can_force(engine):
        pytest.skip("it cannot keep a reply to tool calls")
    for completion in drawn(engine, *(forced(engine, choice, seed=seed) for seed in range(3))):
        assert_well_formed(completion, max_tokens=LONGEST_REPLY)
        assert completion.finish_reason == "stop"
        message: Message = engine.renderer.parse(ids(completion))
        (call,) = message.tool_calls
        assert call.name in (("look", "forecast") if choice == "required" else ("forecast",))
        arguments = json.loads(call.arguments)
        assert arguments["sky"] in ("clear", "cloudy")
        assert arguments["days"] in (1, 2)
        assert message.text == ""


def test_an_engine_that_cannot_force_a_call_is_not_asked(engine):
    if can_force(engine):
        pytest.skip("it can")
    sampled = engine.server.sampled()
    with pytest.raises(Unsupported, match="cannot keep a reply to tool calls") as error:
        drawn(engine, forced(engine, "required"))
    assert error.value.what == "tool_choice"
    assert engine.server.sampled() == sampled
