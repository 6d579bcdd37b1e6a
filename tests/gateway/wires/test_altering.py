"""What engines know and providers do not, asked for on each wire, with an engine behind it."""

import anthropic
import openai
import pytest

from holdfast.gateway.calls.trajectory import _sampling as sampling_of
from holdfast.gateway.protocol.messages import AlteringParameters, GenerationRequest
from holdfast.records.sampling import Sampling
from support.gateway.libraries import HI, anthropic_client, engine_behind, openai_client, perform

REQUEST = {
    "top_k": 5,
    "min_p": 0.25,
    "presence_penalty": 0.5,
    "frequency_penalty": -0.5,
    "repetition_penalty": 1.5,
    "logit_bias": {"7": -100},
    "stop_token_ids": [3],
}
OFF = '{"enable_thinking":false}'
KEPT = Sampling(
    16,
    top_k=5,
    min_p=0.25,
    presence_penalty=0.5,
    frequency_penalty=-0.5,
    repetition_penalty=1.5,
    logit_bias=((7, -100.0),),
    stop_token_ids=(3,),
)


async def chat(binding, **extra):
    async with openai_client(binding) as client:
        await client.chat.completions.create(
            model="m", messages=HI, max_tokens=16, extra_body=extra
        )


async def completions(binding, **extra):
    async with openai_client(binding) as client:
        await client.completions.create(model="m", prompt="hi", max_tokens=16, extra_body=extra)


async def responses(binding, **extra):
    async with openai_client(binding) as client:
        await client.responses.create(model="m", input="hi", max_output_tokens=16, extra_body=extra)


async def messages(binding, **extra):
    async with anthropic_client(binding) as client:
        await client.messages.create(model="m", messages=HI, max_tokens=16, extra_body=extra)


WIRES = [chat, completions, responses, messages]


@pytest.mark.parametrize("ask", WIRES)
@pytest.mark.parametrize("dialect", ["vllm", "sglang"])
def test_all_of_it_reaches_the_engine_and_is_recorded(ask, dialect):
    async def body():
        async with engine_behind(dialect) as (engine, counter, binding):
            engine.reset()
            await ask(binding, **REQUEST)
            (call,) = engine.calls()
            sent = {**call.parameters, **call.parameters.get("sampling_params", {})}
            stops = sent.pop("stop_token_ids")
            assert {name: sent[name] for name in REQUEST if name in sent} == {
                name: value for name, value in REQUEST.items() if name != "stop_token_ids"
            }
            assert stops[-1] == 3, "beside the ends that the model has"
        (step,) = (await counter.subject.history()).generations
        assert step.sampling == KEPT

    perform(body)


@pytest.mark.parametrize("ask", WIRES)
def test_ignore_eos_goes_on_after_the_ends_of_the_model(ask):
    async def body():
        async with engine_behind() as (engine, _, binding):
            engine.reset()
            await ask(binding, ignore_eos=True)
            (call,) = engine.calls()
            assert call.parameters["ignore_eos"] is True
            assert "stop_token_ids" not in call.parameters

    perform(body)


@pytest.mark.parametrize("ask", [chat, responses, messages])
def test_arguments_of_a_template_reach_an_engine_that_renders_itself(ask):
    async def body():
        async with engine_behind("chat") as (engine, counter, binding):
            engine.reset()
            await ask(binding, chat_template_kwargs={"enable_thinking": False})
            (call,) = engine.calls()
            assert call.parameters["chat_template_kwargs"] == {"enable_thinking": False}
        (step,) = (await counter.subject.history()).generations
        assert step.sampling.template_kwargs == {"enable_thinking": False}

    perform(body)


@pytest.mark.parametrize("ask", WIRES)
def test_what_an_engine_lacks_is_refused_by_name_with_the_way_out(ask):
    async def body():
        async with engine_behind("fireworks") as (engine, _, binding):
            engine.reset()
            with pytest.raises(
                (openai.BadRequestError, anthropic.BadRequestError),
                match=r"ends no reply at token ids.*--ignore stop_token_ids",
            ):
                await ask(binding, stop_token_ids=[3])
            assert not engine.calls()
            # The attempt goes on.
            await ask(binding, min_p=0.5)

    perform(body)


@pytest.mark.parametrize("ask", [chat, responses, messages])
def test_arguments_that_no_template_reads_are_refused_by_name(ask):
    async def body():
        async with engine_behind() as (engine, _, binding):
            engine.reset()
            with pytest.raises(
                (openai.BadRequestError, anthropic.BadRequestError),
                match=r"chat_template_kwargs.*has no chat template",
            ):
                await ask(binding, chat_template_kwargs={"enable_thinking": False})
            assert not engine.calls()

    perform(body)


def test_what_a_request_asks_for_goes_before_what_the_run_has():
    run = Sampling(min_p=0.5, presence_penalty=1, stop_token_ids=(3,), chat_template_kwargs=OFF)
    silent = GenerationRequest("m", ())
    assert sampling_of(run, silent) == run
    parameters = AlteringParameters(min_p=0.0, logit_bias=((5, 1.0),), stop_token_ids=())
    request = GenerationRequest("m", (), altering=parameters, chat_template_kwargs="")
    assert sampling_of(run, request) == Sampling(presence_penalty=1, logit_bias=((5, 1.0),))
