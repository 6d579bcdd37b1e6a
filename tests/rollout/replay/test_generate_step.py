"""What a rollout asks of a reply beside its length: JSON, and how long to think."""

import asyncio
import json

import pytest

from holdfast.records.errors import Unsupported, UsageError
from holdfast.records.history import stream_of
from holdfast.records.sampling import Sampling, schema_text
from holdfast.rollout.processors.processor import completion_params_of
from holdfast.rollout.processors.training import TrainingRolloutProcessor, read_params
from holdfast.rollout.replay.prompt import Stream
from holdfast.rollout.replay.speaker import Speaker
from support.rollout.renderers import Thinking
from support.rollout.stage import Oracle, TrajectoryUnderTest
from support.rollout.training import answered, with_params

SCHEMA = {"type": "object", "properties": {"z": {"type": "integer"}}, "required": ["z"]}
TOOL = {"type": "function", "function": {"name": "look", "parameters": {}}}


def played(rollout, answer=None, **options):
    subject = TrajectoryUnderTest(Oracle(answer) if answer else None)
    asyncio.run(subject.perform(rollout, **options))
    return subject


def test_json_is_asked_of_the_policy_and_is_part_of_the_step():
    async def rollout(t):
        t.add("go")
        await t.generate(json=SCHEMA)
        await t.generate(json=True)
        await t.generate()

    subject = played(rollout, lambda request: '{"z": 1}')
    assert [request.sampling.json for request in subject.oracle.requests] == [
        schema_text(SCHEMA),
        True,
        False,
    ]
    history = asyncio.run(subject.history())
    assert [generation.sampling.json for generation in history.generations] == [
        schema_text(SCHEMA),
        True,
        False,
    ]
    asyncio.run(subject.perform(rollout))
    assert len(subject.oracle.requests) == 3


def test_an_engine_that_ignores_it_is_found_out_and_nothing_is_recorded():
    async def rollout(t):
        t.add("go")
        await t.generate(json=True)

    subject = TrajectoryUnderTest(Oracle(lambda request: "no such thing"))
    with pytest.raises(Unsupported, match=r"asked for JSON and answered something else.*no such"):
        asyncio.run(subject.perform(rollout))
    assert not asyncio.run(subject.history()).generations


def test_json_that_is_cut_by_its_length_or_a_stop_string_is_kept():
    async def rollout(t):
        t.add("go")
        assert (await t.generate(json=True, max_tokens=3)).text == '{"z'
        assert (await t.generate(json=True, stop="1")).text == "cut"

    subject = played(rollout, lambda request: "cut" if request.sampling.stop else '{"z": 1}')
    assert len(asyncio.run(subject.history()).generations) == 2


def test_json_leaves_no_room_for_calls_so_tools_are_refused_with_it():
    async def rollout(t):
        t.add("go")
        with pytest.raises(Unsupported, match="cannot call tools"):
            await t.generate(json=True, tools=[TOOL])

    assert not played(rollout).oracle.requests


@pytest.mark.parametrize("wrong", ["{", [1], 5])
def test_what_is_no_schema_is_a_mistake_of_one_line(wrong):
    async def rollout(t):
        t.add("go")
        with pytest.raises(UsageError):
            await t.generate(json=wrong)

    assert not played(rollout).oracle.requests


def test_an_effort_that_the_renderer_cannot_write_is_refused_before_anything_is_sampled():
    async def rollout(t):
        t.add("go")
        with pytest.raises(Unsupported, match="reasoning_effort"):
            await t.generate(reasoning_effort="high")

    assert not played(rollout).oracle.requests


def test_an_effort_is_in_the_prompt_and_another_one_breaks_the_stream_visibly():
    async def rollout(t):
        speaker = Speaker(t.speaker.policy, Thinking())
        t.add("go")
        await t.generate(speaker=speaker, reasoning_effort="low")
        t.add("on")
        await t.generate(speaker=speaker, reasoning_effort="low")
        t.add("on")
        await t.generate(speaker=speaker, reasoning_effort="high")

    subject = played(rollout)
    history = asyncio.run(subject.history())
    first, second, third = history.generations
    assert bytes(stream_of(history, first.path)[:3].tolist()) == b"low"
    assert (second.prefix_break, third.prefix_break) == ("", "the reasoning effort was changed")
    assert third.keep == 0
    assert bytes(stream_of(history, third.path)[:4].tolist()) == b"high"
    asyncio.run(subject.perform(rollout))
    assert len(subject.oracle.requests) == 3


def test_a_stream_that_is_read_from_the_record_knows_its_effort():
    async def rollout(t):
        t.add("go")
        await t.generate(speaker=Speaker(t.speaker.policy, Thinking()), reasoning_effort="low")

    subject = played(rollout)
    history = asyncio.run(subject.history())
    (step,) = history.generations
    message = [*subject.task.messages, step.message]
    for effort, why in (("low", ""), ("high", "the reasoning effort was changed")):
        stream = Stream.after(stream_of(history, step.path), step, message, ())
        sampling = Sampling(reasoning_effort=effort)
        prompt = stream.next_prompt(message, (), renderer=Thinking(effort), sampling=sampling)
        assert prompt.prefix_break == why


def test_completion_params_of_a_row_reach_the_policy():
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
    task = with_params(response_format=form, max_tokens=3)
    processor = TrainingRolloutProcessor({"model": "oracle", "response_format": {"type": "text"}})
    (request,) = answered(processor, task, sampling=Sampling(json=True)).requests
    assert request.sampling == Sampling(3, json=schema_text(SCHEMA))
    (request,) = answered(processor, sampling=Sampling(json=True)).requests
    assert request.sampling == Sampling()
    with pytest.raises(Unsupported, match="reasoning_effort"):
        answered(task=with_params(reasoning_effort="low"))


def test_what_a_run_samples_with_is_what_its_rows_are_told():
    sampling = Sampling(json=schema_text(SCHEMA), reasoning_effort="low")
    parameters = completion_params_of("m", sampling)
    params = read_params(parameters).changes
    assert (params["json"], params["reasoning_effort"]) == (sampling.json, "low")
    assert completion_params_of("m", Sampling()).keys() == {
        "model",
        "temperature",
        "max_tokens",
        "top_p",
    }


def test_completion_params_have_the_names_of_chat_apis():
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
    params = read_params({"model": "m", "response_format": form, "reasoning_effort": "low"})
    assert json.loads(params.changes["json"]) == SCHEMA
    assert params.changes["reasoning_effort"] == "low"
    assert read_params({"response_format": {"type": "text"}}).changes["json"] is False
    for wrong in (
        {"response_format": {"type": "xml"}},
        {"reasoning_effort": "A B"},
        {"json": True},
    ):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            read_params(wrong)


def test_a_rollout_can_ask_for_all_that_engines_know_and_it_is_part_of_the_step():
    requests = {
        "top_k": 5,
        "min_p": 0.1,
        "presence_penalty": 0.5,
        "frequency_penalty": -0.5,
        "repetition_penalty": 1.5,
        "logit_bias": {7: -100},
        "stop_token_ids": [3],
        "extra_body": {"cache_salt": "x"},
    }

    async def rollout(t):
        t.add("go")
        for name, value in requests.items():
            await t.generate(**{name: value})
        await t.generate(ignore_eos=True)
        await t.generate(min_p=0)

    subject = played(rollout)
    samplings = [request.sampling for request in subject.oracle.requests]
    assert samplings[: len(requests)] == [
        Sampling(**{name: value}) for name, value in requests.items()
    ]
    assert samplings[-1] == Sampling()
    ends = [request.stop_token_ids for request in subject.oracle.requests]
    usual = ends[0]
    assert usual
    assert ends[list(requests).index("stop_token_ids")] == (*usual, 3)
    assert ends[-2] == (), "the ends of the model are ignored"
    history = asyncio.run(subject.history())
    assert [step.sampling for step in history.generations] == samplings
    asyncio.run(subject.perform(rollout))
    assert len(subject.oracle.requests) == len(samplings), "replayed, and not asked again"


@pytest.mark.parametrize(
    ("changes", "arguments"),
    [
        ({"min_p": 2}, "min_p must be 0 to 1, not 2"),
        ({"logit_bias": {"x": 1}}, "logit_bias is an object of token ids"),
        ({"extra_body": {"max_tokens": 1}}, "extra_body.max_tokens: give max_tokens itself"),
        ({"chat_template_kwargs": {"a": 1}}, "the renderer 'bytes' has no chat template"),
    ],
)
def test_what_makes_no_sense_is_refused_before_it_is_sampled(changes, arguments):
    async def rollout(t):
        t.add("go")
        await t.generate(**changes)

    subject = TrajectoryUnderTest(Oracle(lambda request: "never"))
    with pytest.raises(UsageError, match=arguments):
        asyncio.run(subject.perform(rollout))
    assert not subject.oracle.requests
