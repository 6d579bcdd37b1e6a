"""An assistant that speaks twice in a row: the stream goes on from its own tokens, always."""

import random
from array import array
from pathlib import Path

import pytest
from msgspec import structs

from holdfast.policy.rendering.renderer import Renderer
from holdfast.policy.rendering.select import renderer_for
from holdfast.records.encoding.tokens import pack_logprobs
from holdfast.records.history import History
from holdfast.records.message import Message, user
from holdfast.records.samples.sample import samples_of
from holdfast.records.sampling import Sampling
from holdfast.records.step import Finished, Generated, VersionSpan
from holdfast.records.trajectory import Status
from holdfast.rollout.replay.prompt import Stream
from support.policy.chat_models import FAMILIES, QWEN3, TEMPLATES, TOOL, write_model
from support.policy.streams import taken

RENDERERS = ["bytes", *FAMILIES, *(f"template {name}" for name in TEMPLATES)]


def renderer_named(name: str, folder: Path) -> Renderer:
    if name == "bytes":
        return renderer_for("", family="bytes")
    kind, _, template = name.partition(" ")
    write_model(folder, TEMPLATES[template] if template else QWEN3)
    return renderer_for(folder, family=kind)


def sampled(renderer: Renderer, chance: random.Random) -> list[int]:
    """Any tokens but those that end a turn, and mostly one that does."""
    vocabulary = len(renderer.tokenizer) if hasattr(renderer, "tokenizer") else 256
    ids = [chance.randrange(vocabulary) for _ in range(chance.randint(1, 12))]
    ids = [token for token in ids if token not in renderer.stop_token_ids] or [65]
    return [*ids, chance.choice(renderer.stop_token_ids)] if chance.random() < 0.7 else ids


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", RENDERERS)
def test_each_sampled_token_is_kept_and_trained_once(name: str, seed: int, tmp_path: Path) -> None:
    renderer, chance = renderer_named(name, tmp_path), random.Random(f"{name} {seed}")
    tools = (TOOL,) if chance.random() < 0.5 else ()
    stream, messages = Stream(), [user("Tell me.")]
    expected: array[int] = array("i")
    steps: list[Generated] = []
    for turn in range(6):
        prompt = stream.next_prompt(messages, tools, renderer=renderer, sampling=Sampling())
        assert (prompt.keep, prompt.prefix_break) == (len(expected), "")
        expected.extend(prompt.delta)
        ids = sampled(renderer, chance)
        message = renderer.parse(array("i", ids), prompt=expected, tools=tools)
        steps.append(recorded(prompt, ids, message, turn))
        stream.advance(steps[-1], messages, tools)
        messages.append(message)
        expected.extend(ids)
        assert stream.ids == expected
    history = History([*steps, Finished(Status.COMPLETED, "", 1.0, 0.0)])
    (sample,) = samples_of(history, task="t", group="t", sample=0)
    trained = [
        token_id for token_id, mask in zip(sample.token_ids, sample.loss_mask, strict=True) if mask
    ]
    assert trained == [item for step in steps for item in array("i", step.ids)]


def recorded(prompt, ids: list[int], message: Message, turn: int) -> Generated:
    logprobs = pack_logprobs([-1.0] * len(ids))
    spans = (VersionSpan("v1", 0, len(ids)),)
    return structs.replace(taken(prompt, ids, message, turn), logprobs=logprobs, versions=spans)


@pytest.mark.parametrize("name", ["qwen3", "llama-3", "template qwen3", "template plain"])
def test_the_second_turn_begins_as_a_whole_rendering_has_it(name: str, tmp_path: Path) -> None:
    renderer = renderer_named(name, tmp_path)
    messages = renderer.tokenizer.encode("hello there")
    end = renderer.stop_token_ids[0]
    prompt = renderer.render([user("hi")], ())
    for completion in ([*messages, end], messages):
        message = renderer.parse(completion, prompt=prompt)
        whole = renderer.decode(renderer.render([user("hi"), message], ()))
        following = renderer.bridge(prompt, completion, (), ())
        assert following is not None
        assert whole.endswith(
            renderer.decode([*messages, end, *following[completion == messages :]])
        )


def test_reasoning_that_was_cut_is_closed_first(tmp_path: Path) -> None:
    renderer = renderer_named("template opened", tmp_path)
    prompt = renderer.render([user("hi")], ())
    following = renderer.bridge(prompt, renderer.tokenizer.encode("let me see"), (), ())
    assert renderer.decode(following).startswith("</think><|im_end|>")
