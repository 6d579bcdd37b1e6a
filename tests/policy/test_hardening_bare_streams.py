"""Bare completions of models whose markup is tokens: whatever is sampled, it is told as text."""

import random

import pytest
from chat_models import FAMILIES, write_model
from test_live_message import random_reply

from holdfast.policy.rendering.family import FamilyRenderer
from holdfast.policy.rendering.parse_stream import Channel, LiveMessage
from holdfast.policy.rendering.renderer import ByteRenderer
from holdfast.policy.rendering.tokenizer import load_tokenizer


@pytest.fixture(scope="module")
def renderers(tmp_path_factory):
    tokenizer = load_tokenizer(write_model(tmp_path_factory.mktemp("model")))
    return [ByteRenderer(), *(FamilyRenderer(tokenizer, family) for family in FAMILIES)]


def told_of(renderer, ids: list[int], chance: random.Random, stop=()) -> list:
    live, told, at = LiveMessage(renderer, prompt=(), stop=stop, bare=True), [], 0
    while at < len(ids):
        size = chance.choice((1, 2, 5, 30))
        told += live.take(ids[at : at + size])
        at += size
    return told


def test_what_is_told_of_a_bare_completion_is_a_beginning_of_its_text(renderers):
    chance = random.Random(seed := random.randrange(2**32))
    print(f"seed {seed}")
    for renderer in renderers:
        for _ in range(20):
            ids = random_reply(renderer, chance)
            told = told_of(renderer, ids, chance)
            assert {channel for channel, _ in told} <= {Channel.CONTENT}
            text = renderer.decode(ids, special=False)
            assert text.startswith("".join(part for _, part in told))


def test_text_after_a_token_that_is_none_is_told_and_a_stop_string_around_it_is_found():
    ids = [*b"<think>one", ByteRenderer.OPEN, *b" two ST", ByteRenderer.OPEN, *b"OP three"]
    told = told_of(ByteRenderer(), ids, random.Random(1), stop=("STOP",))
    assert "".join(part for _, part in told) == "<think>one two"
    assert {channel for channel, _ in told} == {Channel.CONTENT}
