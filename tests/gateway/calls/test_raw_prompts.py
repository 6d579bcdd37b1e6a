"""`/v1/completions`: texts and tokens that go on with what was sampled, by the exact tokens."""

import asyncio
from array import array
from pathlib import Path

import openai
import pytest

import holdfast.embedded
from holdfast.gateway.agents.subprocess import BlackBoxRolloutProcessor
from holdfast.gateway.calls.raw_prompts import WITHIN, RawPrompts
from holdfast.policy.policy import Completion
from holdfast.policy.rendering.messages_only import MessagesOnly
from holdfast.policy.rendering.renderer import ByteRenderer
from holdfast.policy.rendering.select import renderer_for
from holdfast.records.encoding.tokens import pack_ids, pack_logprobs
from holdfast.records.history import stream_of
from holdfast.records.message import Message, Role, user
from holdfast.records.sampling import Sampling
from holdfast.records.step import VersionSpan
from holdfast.rollout.replay.speaker import Speaker
from support.engine.local_run import LocalRun
from support.gateway.counter import opened
from support.gateway.libraries import engine_behind, openai_client
from support.rollout.stage import Oracle

TINY = Path(holdfast.embedded.__file__).parent / "tiny"


def perform(body):
    return asyncio.run(body())


async def completed(client, prompt, **options):
    return await client.completions.create(
        model="m", prompt=prompt, **{"max_tokens": 200, **options}
    )


async def completed_text(client, prompt, **options):
    return (await completed(client, prompt, **options)).choices[0].text


async def generations(counter):
    return (await counter.subject.history()).generations


@pytest.mark.parametrize("stream", [False, True])
def test_a_text_is_encoded_and_its_reply_is_text_whatever_it_looks_like(stream):
    reply = '<tool_call>{"name": "f", "arguments": {}}</tool_call> é'

    async def body():
        async with (
            opened(lambda request: reply) as (counter, _, binding),
            openai_client(binding) as client,
        ):
            made = await completed(client, "Once, naïvely", stream=stream)
            if stream:
                assert "".join([item.choices[0].text async for item in made]) == reply
            else:
                assert (made.choices[0].text, made.choices[0].finish_reason) == (reply, "stop")
                assert made.usage.prompt_tokens == len("Once, naïvely".encode())
            (request,) = counter.subject.oracle.requests
            assert bytes(request.prompt.tolist()).decode() == "Once, naïvely"
            (step,) = await generations(counter)
            assert step.added == (user("Once, naïvely"),)
            assert step.message == Message(Role.ASSISTANT, reply)

    perform(body)


def test_a_text_that_goes_on_after_a_cut_completion_goes_on_with_its_tokens():
    async def body():
        async with opened() as (counter, _, binding), openai_client(binding) as client:
            first = await completed_text(client, "Once", max_tokens=4)
            second = await completed_text(client, f"Once{first} upon", max_tokens=4)
            await completed_text(client, f"Once{first} upon{second}", max_tokens=4)
            steps = await generations(counter)
            assert [step.base for step in steps] == ["", steps[0].path, steps[1].path]
            assert [step.prefix_break for step in steps] == ["", "", ""]
            assert [step.keep for step in steps] == [0, 8, 17]
            assert [step.added for step in steps] == [(user("Once"),), (user(" upon"),), ()]
            texts = [
                bytes(request.prompt.tolist()).decode()
                for request in counter.subject.oracle.requests
            ]
            assert texts == ["Once", f"Once{first} upon", f"Once{first} upon{second}"]

    perform(body)


def test_a_text_that_goes_on_after_an_ended_completion_leaves_its_end_out_visibly():
    async def body():
        async with opened() as (counter, _, binding), openai_client(binding) as client:
            first = await completed_text(client, "Once")
            await completed_text(client, f"Once{first} upon")
            single, two = await generations(counter)
            history = await counter.subject.history()
            assert stream_of(history, single.path)[-1] == ByteRenderer.END
            assert (two.base, two.prefix_break) == (single.path, WITHIN)
            assert two.keep == len(stream_of(history, single.path)) - 1
            assert two.added == (user(f"Once{first} upon"),)
            third = await completed_text(client, f"Once{first} upon{two.message.text}!")
            assert third
            assert (await generations(counter))[2].base == two.path

    perform(body)


def test_a_stop_string_is_not_told_and_what_was_sampled_is_kept_with_or_without_it():
    async def body():
        replies, stop = ("I look.\nObservation: none",), "Observation:"
        async with (
            engine_behind(replies=replies) as (_, counter, binding),
            openai_client(binding) as client,
        ):
            message = await completed_text(client, "Thought:", stop=[stop, "never"])
            assert message == "I look.\n"
            await completed_text(client, f"Thought:{message}{stop} 42", max_tokens=4)
            await completed_text(client, f"Thought:{message}; 42", max_tokens=4)
            stopped, whole, without = await generations(counter)
            assert stopped.message.text == message + stop
            assert (whole.base, whole.prefix_break) == (stopped.path, "")
            assert bytes(array("i", whole.delta).tolist()) == b" 42"
            assert (without.base, without.prefix_break) == (stopped.path, WITHIN)
            assert without.keep == whole.keep - len(stop)

    perform(body)


def test_a_text_that_says_something_else_is_a_root_of_its_own():
    async def body():
        async with opened() as (counter, _, binding), openai_client(binding) as client:
            first = await completed_text(client, "Once")
            for other in ("Twice", f"Once{first[:-1]}", f" Once{first}", "Once"):
                await completed_text(client, other)
            assert {generation.base for generation in await generations(counter)} == {""}

    perform(body)


def test_tokens_that_go_on_with_an_earlier_call_are_its_branch():
    async def body():
        async with opened() as (counter, _, binding), openai_client(binding) as client:
            await completed_text(client, [1, 2, 3], max_tokens=4)
            history = await counter.subject.history()
            stream = stream_of(history, history.generations[0].path).tolist()
            await completed_text(client, [*stream, 9, 9], max_tokens=4)
            await completed_text(client, [*stream[:-1], 9], max_tokens=4)
            first, second, other = await generations(counter)
            assert (second.base, second.keep) == (first.path, len(stream))
            assert (other.base, second.prefix_break) == ("", "")
            requests = [request.prompt.tolist() for request in counter.subject.oracle.requests]
            assert requests == [[1, 2, 3], [*stream, 9, 9], [*stream[:-1], 9]]

    perform(body)


def test_several_prompts_are_answered_in_order_each_with_its_choices():
    async def body():
        async with opened() as (counter, _, binding), openai_client(binding) as client:
            made = await completed(client, ["a", "bcd"], n=2, max_tokens=5)
            assert [choice.index for choice in made.choices] == [0, 1, 2, 3]
            request = {request.id: request.prompt for request in counter.subject.oracle.requests}
            steps = await generations(counter)
            prompts = [request[f"{counter.subject.leases[0].key}/{step.path}"] for step in steps]
            assert [bytes(prompt.tolist()) for prompt in prompts] == [b"a", b"a", b"bcd", b"bcd"]
            assert len({request.seed for request in counter.subject.oracle.requests}) == 4
            assert (made.usage.prompt_tokens, made.usage.completion_tokens) == (4, 20)
            async with counter.attempt() as (_, again), openai_client(again) as client:
                assert await completed(client, ["a", "bcd"], n=2, max_tokens=5) == made
                await completed(client, ["bcd", "a"], n=2, max_tokens=5)
            assert len(counter.subject.oracle.requests) == 8

    perform(body)


def test_a_new_attempt_goes_on_from_what_was_recorded():
    async def body():
        async with opened() as (counter, _, binding), openai_client(binding) as client:
            first = await completed_text(client, "Once", max_tokens=4)
            second = await completed_text(client, f"Once{first} upon", max_tokens=4)
            async with counter.attempt() as (_, again), openai_client(again) as client:
                assert await completed_text(client, "Once", max_tokens=4) == first
                await completed_text(client, f"Once{first} upon{second} a time", max_tokens=4)
            assert len(counter.subject.oracle.requests) == 3
            single, two, three = await generations(counter)
            assert (two.base, three.base) == (single.path, two.path)

    perform(body)


def test_an_engine_that_takes_messages_takes_no_bare_prompt():
    async def body():
        async with (
            opened() as (counter, trajectory, binding),
            openai_client(binding) as client,
        ):
            trajectory.session.speaker = Speaker(counter.subject.oracle, MessagesOnly())
            for prompt in ("Once", [1, 2]):
                with pytest.raises(openai.BadRequestError, match="takes messages") as refused:
                    await completed_text(client, prompt)
                assert refused.value.param == "prompt"

    perform(body)


def test_a_conversation_does_not_begin_with_a_bare_prompts_reply():
    async def body():
        async with opened() as (counter, _, binding), openai_client(binding) as client:
            text = await completed_text(client, "Once")
            history = [{"role": "assistant", "content": text}, {"role": "user", "content": "?"}]
            async with counter.attempt() as (_, again), openai_client(again) as client:
                await client.chat.completions.create(model="m", messages=history)
            assert {generation.base for generation in await generations(counter)} == {""}

    perform(body)


# --- with a tokenizer


class Spelling(Oracle):
    """Says everything letter by letter, as no tokenizer would."""

    async def sample(self, request):
        self.requests.append(request)
        letters = [renderer().tokenizer.encode(item)[0] for item in "hello there"]
        spans = (VersionSpan("v", 0, len(letters)),)
        scores = pack_logprobs([-1.0] * len(letters))
        return Completion(pack_ids(letters), scores, "length", spans, self.model, 1, 0.0)


def renderer():
    return renderer_for(TINY, family="template")


def test_what_was_sampled_is_never_encoded_again():
    async def body():
        async with (
            opened() as (counter, trajectory, binding),
            openai_client(binding) as client,
        ):
            oracle = counter.subject.oracle = Spelling()
            trajectory.session.speaker = Speaker(oracle, renderer())
            text = await completed_text(client, "<|im_start|>user\nhi", max_tokens=11)
            await completed_text(client, f"<|im_start|>user\nhi{text}<|im_end|>\n", max_tokens=11)
            first, second = oracle.requests
            encode = renderer().tokenizer.encode
            assert first.prompt.tolist() == encode("<|im_start|>user\nhi")
            letters = [encode(item)[0] for item in "hello there"]
            assert second.prompt.tolist() == [
                *first.prompt.tolist(),
                *letters,
                *encode("<|im_end|>\n"),
            ]
            assert len(letters) > len(encode("hello there"))

    perform(body)


def test_a_whole_text_gets_what_the_tokenizer_puts_around_one_and_a_rest_does_not():
    tokenizers = pytest.importorskip("tokenizers")
    result = renderer()
    result.tokenizer._backend.post_processor = tokenizers.processors.TemplateProcessing(
        single="<|im_start|> $A", special_tokens=[("<|im_start|>", 1)]
    )
    plain = result.encode("hi", whole=False)
    assert result.encode("hi", whole=True) == [1, *plain]
    assert 1 not in plain


# --- what becomes of it


def test_each_sampled_token_of_a_text_agent_is_trained_once():
    async def agent(binding, task):
        async with openai_client(binding) as client:
            text = "Question: 1+1\n"
            for turn in range(3):
                text += (
                    await completed_text(client, text, max_tokens=6) + f"\nObservation: {turn}\n"
                )
            text += await completed_text(client, text)
            await completed_text(client, f"{text} And so?")

    local = LocalRun()
    local.run(BlackBoxRolloutProcessor(agent))
    history, rows = local.history(), local.rows()
    assert sum(sum(row["loss_mask"]) for row in rows) == history.sampled_tokens
    assert len(rows) == 2
    assert history.prefix_breaks == 1


def test_many_calls_are_told_apart_in_one_pass_over_the_text():
    """The longest beginning is found among thousands of ends, some of them of equal length."""
    local = LocalRun()

    async def agent(binding, task):
        async with openai_client(binding) as client:
            for number in range(20):
                await completed(client, [f"{number:02}", f"{number:02}x"], max_tokens=3)

    local.run(BlackBoxRolloutProcessor(agent))
    history = local.history()
    bare = RawPrompts(history)
    for step in history.generations:
        text = step.added[0].text + step.message.text
        preparing = bare.prepare(f"{text}…", renderer=ByteRenderer(), sampling=Sampling())
        request = asyncio.run(preparing)
        assert request.prompt.base == step.path
