"""What is told of a reply while it is sampled is a beginning of what it turns out to be."""

import random

import pytest

from holdfast.policy.rendering.family import FamilyRenderer
from holdfast.policy.rendering.jinja import template_of
from holdfast.policy.rendering.messages_only import MessagesOnly
from holdfast.policy.rendering.parse_stream import (
    MAX_HELD_TOKENS,
    Channel,
    LiveMessage,
    StreamDetokenizer,
)
from holdfast.policy.rendering.renderer import ByteRenderer
from holdfast.policy.rendering.template import TemplateRenderer
from holdfast.policy.rendering.tokenizer import load_tokenizer
from holdfast.records.message import Message, Role, assistant, user
from support.policy.chat_models import FAMILIES, TEMPLATES, TOOL, call, write_model

WORDS = (
    *(
        "Sure",
        " thing",
        ",",
        "\n",
        "  ",
        "\n\n",
        " naïve",
        "雪",
        "🌧",
        "é",
        "<",
        ">",
        "</",
        "{",
        "}",
    ),
    *(
        "<b>",
        "a < b",
        "<thin",
        "think>",
        "<tool",
        '{"name": "look"',
        "x" * 40,
        "\t",
        "\u2028",
        "\x85",
    ),
)
MARKS = (
    *("<think>", "</think>", "<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>"),
    *("<think:opensource>", "</think:opensource>", "<|im_end|>", "<|eot_id|>", "<|end_header_id|>"),
    *("<|channel>", "<channel|>", "<|think|>", "<｜tool▁calls▁begin｜>", "｜DSML｜"),
    *("<|content_thinking|>", "<|content_text|>", "<|end_message|>", "<|message_model|>"),
    *("<minimax:tool_call>", "</minimax:tool_call>", "<|tool_calls_section_begin|>", "<assistant>"),
    *("<tool_calls:opensource>", "<|tool_call>", "<tool_call|>", "<|content_invoke_tool_json|>"),
    '<tool_call>{"name": "look", "arguments": {"at": "x"}}</tool_call>',
    "<tool_call>\n<function=look>\n<parameter=at>\nx\n</parameter>\n</function>\n</tool_call>",
    "<tool_call>look\n<arg_key>at</arg_key>\n<arg_value>x</arg_value>\n</tool_call>",
    '{"name": "look", "parameters": {"at": "x"}}',
)
CONVERSATION = [user("Look.")]
REPLIES = 30
"""Of each renderer, in each run of the suite."""


@pytest.fixture(scope="module")
def renderers(tmp_path_factory):
    tokenizer = load_tokenizer(write_model(tmp_path_factory.mktemp("model")))
    result = {family: FamilyRenderer(tokenizer, family) for family in FAMILIES}
    for name, template in TEMPLATES.items():
        folder = write_model(tmp_path_factory.mktemp("template"), template=template)
        tokenizer = load_tokenizer(folder)
        chosen = TemplateRenderer(tokenizer, template_of(tokenizer, {}))
        result[f"{name} template"] = chosen
        if name in ("qwen3", "opened"):
            for parser in ("qwen3.5", "glm", "deepseek-v3"):
                chosen = TemplateRenderer(tokenizer, template_of(tokenizer, {}), parser=parser)
                result[f"{name} template, {parser}"] = chosen
    return result | {"bytes": ByteRenderer()}


def encoded(renderer, pieces: list[str]) -> list[int]:
    if isinstance(renderer, ByteRenderer):
        return list("".join(pieces).encode())
    return [token for piece in pieces for token in renderer.tokenizer.encode(piece)]


def streamed_in(renderer, ids: list[int], cuts: list[int], prompt, stop=()) -> dict[Channel, str]:
    live = LiveMessage(renderer, prompt=prompt, tools=[TOOL], stop=stop)
    message = dict.fromkeys(Channel, "")
    for start, end in zip([0, *cuts], [*cuts, len(ids)], strict=True):
        for channel, text in live.take(ids[start:end]):
            message[channel] += text
    return message


def check(renderer, ids: list[int], cuts: list[int]) -> dict[Channel, str]:
    prompt = renderer.render(CONVERSATION, [TOOL])
    message = renderer.parse(ids, prompt=prompt, tools=[TOOL])
    channels = streamed_in(renderer, ids, cuts, prompt)
    assert message.text.startswith(channels[Channel.CONTENT]), (message, channels)
    assert (message.reasoning or "").startswith(channels[Channel.REASONING]), (message, channels)
    return channels


def random_reply(renderer, chance: random.Random) -> list[int]:
    """Words and markup in any order, whole or cut anywhere; or what the family itself writes."""
    if chance.random() < 0.5:
        kinds = (WORDS, WORDS, MARKS)
        pieces = [chance.choice(chance.choice(kinds)) for _ in range(chance.randrange(14))]
        ids = encoded(renderer, pieces)
        return ids[: chance.randrange(len(ids) + 1)] if chance.random() < 0.3 else ids
    text, thought = ("".join(chance.choices(WORDS, k=chance.randrange(8))) for _ in range(2))
    message = Message(
        Role.ASSISTANT,
        f"So{text}",
        reasoning=f"Hm{thought}",
        tool_calls=(call("x", "functions.look:0"),) * chance.randrange(2),
    )
    prompt = renderer.render(CONVERSATION, [TOOL])
    return list(renderer.render([*CONVERSATION, message, user("And?")], [TOOL])[len(prompt) :])


@pytest.mark.parametrize("part", range(4))
def test_what_is_told_is_a_beginning_of_what_is_parsed(renderers, part):
    """Of every family, however its reply is cut into batches."""
    chance, live = random.Random(seed := random.randrange(2**32)), 0
    print(f"seed {seed}")
    for renderer in list(renderers.values())[part::4]:
        for _ in range(REPLIES):
            ids = random_reply(renderer, chance)
            cuts = sorted(chance.randrange(len(ids) + 1) for _ in range(chance.randrange(12)))
            outcomes = check(
                renderer, ids, list(range(len(ids))) if chance.random() < 0.3 else cuts
            )
            live += any(outcomes.values())
    assert live > REPLIES


def test_reasoning_that_ends_twice_loses_no_text(renderers):
    """First with the characters of `</think>`, then with its token."""
    renderer = renderers["opened template, deepseek-v3"]
    ids = encoded(renderer, ["Hm", "</", "think>", "<thin", " a < b", "</think>", "\n\nSure"])
    check(renderer, ids, list(range(len(ids))))
    message = renderer.parse(ids, prompt=renderer.render(CONVERSATION, [TOOL]), tools=[TOOL])
    assert (message.reasoning, message.text) == ("Hm", "<thin a < b</think>\n\nSure")


def test_text_is_not_taken_for_the_markup_that_a_parser_adds(renderers):
    """The parser closes the open channel with `<channel|>`, which ends like the text `>`."""
    renderer = renderers["gemma4"]
    ids = encoded(renderer, ["雪", "\n", "<|content_text|>", "<|channel>", ">", "🌧"])
    check(renderer, ids, list(range(len(ids))))


LIVE = "The answer is 42 é, and that is that"


def test_every_family_tells_text_while_it_comes(renderers):
    silent = set()
    for name, renderer in renderers.items():
        prompt = renderer.render(CONVERSATION, [TOOL])
        ids = encoded(renderer, ["<|content_text|>" if name == "inkling" else "", LIVE])
        channels = streamed_in(renderer, ids, list(range(len(ids))), prompt)
        if "".join(channels.values()) != LIVE:
            silent.add(name)
    assert not silent


def test_reasoning_is_told_before_the_text_that_follows_it(renderers):
    """Of those that write `<think>`: each in its own channel."""
    for name in ("qwen3", "qwen3.5", "deepseek-v3", "kimi-k2", "minimax-m2", "qwen3 template"):
        renderer = renderers[name]
        prompt = renderer.render(CONVERSATION, [TOOL])
        opened = prompt_opens(renderer, prompt)
        pieces = ["" if opened else "<think>\n", "Let me see.", "\n</think>\n\n", LIVE, "\n", "<"]
        ids = encoded(renderer, pieces)
        live = LiveMessage(renderer, prompt=prompt, tools=[TOOL])
        messages = [item for token in ids for item in live.take([token])]
        channels = [channel for channel, _ in messages]
        assert channels == sorted(channels, key=[Channel.REASONING, Channel.CONTENT].index), name
        joined = {item: "".join(text for c, text in messages if c is item) for item in Channel}
        assert joined == {Channel.REASONING: "Let me see.", Channel.CONTENT: LIVE}, name


def prompt_opens(renderer, prompt) -> bool:
    return renderer.decode(prompt[-8:]).rstrip().endswith("<think>")


def test_text_before_a_call_is_told_and_nothing_of_the_call(renderers):
    for renderer in (renderers["qwen3"], renderers["bytes"], renderers["plain template"]):
        live = LiveMessage(renderer, prompt=renderer.render(CONVERSATION, [TOOL]), tools=[TOOL])
        ids = encoded(renderer, ["Let me look. ", MARKS[-4], " And more"])
        message = "".join(text for token in ids for _, text in live.take([token]))
        assert message == "Let me look."
        assert live.is_over


def test_what_may_be_the_beginning_of_a_stop_string_waits():
    renderer = ByteRenderer()
    channels = streamed_in(renderer, list(b"one, two STO"), [4, 9, 11], [], stop=("STOP",))
    assert channels[Channel.CONTENT] == "one, two"
    message = streamed_in(renderer, list(b"one, two STOmach"), [4, 9, 11], [], stop=("STOP",))
    assert message[Channel.CONTENT] == "one, two STOmach"


def test_a_bare_completion_is_text_up_to_its_stop_string():
    live = LiveMessage(ByteRenderer(), prompt=(), stop=("STOP",), bare=True)
    messages = [
        item for token in b" <tool_call> is text STOP and gone" for item in live.take([token])
    ]
    assert "".join(text for _, text in messages) == " <tool_call> is text"
    assert {channel for channel, _ in messages} == {Channel.CONTENT}


def test_an_engine_without_tokens_is_told_of_at_its_end_only():
    live = LiveMessage(MessagesOnly(), prompt=())
    assert live.is_over
    assert live.take([1, 2, 3]) == []


def test_a_batch_costs_what_it_brings_however_long_the_reply_is():
    class Counting(ByteRenderer):
        decoded = parsed = 0

        def decode(self, ids, *, special=True):
            self.decoded += len(ids)
            return super().decode(ids, special=special)

        def parse(self, completion, **more):
            self.parsed += 1
            return super().parse(completion, **more)

    renderer = Counting()
    live, batches = LiveMessage(renderer, prompt=()), 500
    for _ in range(batches):
        live.take(list(b"sixteen letters "))
    assert renderer.parsed == 1
    assert renderer.decoded < 16 * 5 * batches


def test_increments_are_the_text_wherever_they_are_cut():
    renderer, chance = ByteRenderer(), random.Random(5)
    text = "naïve 雪 🌧 \ufffd ok " * 20
    ids, message, increments = list(text.encode()), "", StreamDetokenizer(ByteRenderer().decode)
    while ids:
        size = chance.randrange(1, 6)
        message, ids = message + increments.take(ids[:size]), ids[size:]
    assert message == text
    # What never becomes a character does not hold up what follows for ever.
    increments = StreamDetokenizer(renderer.decode)
    assert sum(len(increments.take([0x80])) for _ in range(2 * MAX_HELD_TOKENS)) >= MAX_HELD_TOKENS


def test_a_reply_that_is_only_cut_reasoning_is_told_as_reasoning(renderers):
    renderer = renderers["qwen3"]
    ids = encoded(renderer, ["<think>", "\n", "Okay, so"])
    outcome = check(renderer, ids, list(range(len(ids))))
    assert outcome[Channel.REASONING] == "Okay, so"
    assert renderer.parse(
        ids, prompt=renderer.render([assistant("x"), *CONVERSATION], [])
    ).reasoning


@pytest.fixture(scope="module")
def bare_renderers(tmp_path_factory):
    tokenizer = load_tokenizer(write_model(tmp_path_factory.mktemp("model")))
    return [ByteRenderer(), *(FamilyRenderer(tokenizer, family) for family in FAMILIES)]


def streamed_bare(renderer, ids: list[int], chance: random.Random, stop=()) -> list:
    live, message, at = LiveMessage(renderer, prompt=(), stop=stop, bare=True), [], 0
    while at < len(ids):
        size = chance.choice((1, 2, 5, 30))
        message += live.take(ids[at : at + size])
        at += size
    return message


def test_what_is_told_of_a_bare_completion_is_a_beginning_of_its_text(bare_renderers):
    chance = random.Random(seed := random.randrange(2**32))
    print(f"seed {seed}")
    for renderer in bare_renderers:
        for _ in range(20):
            ids = random_reply(renderer, chance)
            items = streamed_bare(renderer, ids, chance)
            assert {channel for channel, _ in items} <= {Channel.CONTENT}
            text = renderer.decode(ids, special=False)
            assert text.startswith("".join(part for _, part in items))


def test_text_after_a_token_that_is_none_is_told_and_a_stop_string_around_it_is_found():
    ids = [*b"<think>one", ByteRenderer.OPEN, *b" two ST", ByteRenderer.OPEN, *b"OP three"]
    items = streamed_bare(ByteRenderer(), ids, random.Random(1), stop=("STOP",))
    assert "".join(part for _, part in items) == "<think>one two"
    assert {channel for channel, _ in items} == {Channel.CONTENT}
