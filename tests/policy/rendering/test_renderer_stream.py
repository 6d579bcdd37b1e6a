"""Renderers as a rollout uses them: turn after turn, over a token stream that only grows."""

from array import array
from pathlib import Path

import pytest

from holdfast.policy.rendering.family import FamilyRenderer
from holdfast.policy.rendering.select import renderer_for
from holdfast.policy.rendering.template import TemplateRenderer
from holdfast.records.message import Message, user
from holdfast.records.sampling import Sampling
from holdfast.rollout.replay.prompt import Stream
from support.policy.chat_models import QWEN3, TEMPLATES, TOOL, result, write_model
from support.policy.streams import taken

SAMPLED = 'A zebra.<tool_call>\n{"name": "look", "arguments": {"what": "zebra"}}\n</tool_call>'


@pytest.fixture(params=["family", "template", "plain template"])
def renderer(request: pytest.FixtureRequest, tmp_path: Path) -> FamilyRenderer | TemplateRenderer:
    folder = write_model(tmp_path, TEMPLATES["plain"] if "plain" in request.param else QWEN3)
    family = "qwen3" if request.param == "family" else "template"
    chosen = renderer_for(folder, family=family)
    assert isinstance(chosen, FamilyRenderer | TemplateRenderer)
    return chosen


def test_text_that_was_sampled_is_never_encoded_again_and_the_stream_only_grows(
    renderer: FamilyRenderer | TemplateRenderer, monkeypatch: pytest.MonkeyPatch
) -> None:
    # An unusual tokenization of the text: one token per byte, as no encoder would write it.
    tokenizer = renderer.tokenizer
    reply, call = SAMPLED.split("<tool_call>")
    inside = call.removesuffix("</tool_call>")
    marks = tokenizer.convert_tokens_to_ids(["<tool_call>", "</tool_call>"])
    letters = [[tokenizer.encode(item)[0] for item in text] for text in (reply, inside)]
    sampled = [*letters[0], marks[0], *letters[1], marks[1]]
    assert sampled != tokenizer.encode(SAMPLED)
    encoded: list[str] = []
    encode = tokenizer.encode

    def recorded(text: str, **options: object) -> list[int]:
        encoded.append(text)
        return encode(text, **options)

    monkeypatch.setattr(tokenizer, "encode", recorded)
    stream, tools = Stream(), (TOOL,)
    messages: list[Message] = [user("What do you see?")]
    expected = array("i")
    for turn in range(20):
        prompt = stream.next_prompt(messages, tools, renderer=renderer, sampling=Sampling())
        assert (prompt.keep, prompt.prefix_break) == (len(expected), "")
        expected.extend(prompt.delta)
        # Every other completion is cut by its length just before its end.
        ids = sampled if turn % 2 else [*sampled, renderer.stop_token_ids[0]]
        message = renderer.parse(array("i", ids), prompt=expected, tools=tools)
        assert (message.text, len(message.tool_calls)) == ("A zebra.", 1)
        stream.advance(taken(prompt, ids, message, turn), messages, tools)
        expected.extend(ids)
        assert stream.ids == expected
        messages += [message, result("Nothing.")]
    assert encoded
    assert not [text for text in encoded if "zebra" in text]


def test_a_rewritten_history_is_rendered_anew_and_the_break_is_named(
    renderer: FamilyRenderer | TemplateRenderer,
) -> None:
    stream = Stream()
    messages = [user("One."), user("Two.")]
    prompt = stream.next_prompt(messages, (), renderer=renderer, sampling=Sampling())
    ids = [*renderer.tokenizer.encode("So."), renderer.stop_token_ids[0]]
    message = renderer.parse(ids, prompt=prompt.delta)
    stream.advance(taken(prompt, ids, message, 0), messages, ())
    changed = [messages[0], user("Three."), message, user("Four.")]
    anew = stream.next_prompt(changed, (), renderer=renderer, sampling=Sampling())
    assert anew.prefix_break == "earlier messages were changed"
    assert stream.ids[: anew.keep].tolist() + anew.delta.tolist() == list(
        renderer.render(changed, ())
    )
