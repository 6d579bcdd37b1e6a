from array import array
from collections.abc import Sequence
from datetime import datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.policy.rendering.family import FamilyRenderer
from holdfast.policy.rendering.jinja import template_of
from holdfast.policy.rendering.template import TemplateRenderer
from holdfast.policy.rendering.tokenizer import load_tokenizer
from holdfast.records.errors import UsageError
from holdfast.records.message import Message, Role, assistant, system, user
from support.policy.chat_models import APPENDING, TEMPLATES, TOOL, call, result, write_model

CONVERSATION = [user("Look, naïvely: 雪.")]
CALLED = Message(Role.ASSISTANT, "Sure.", tool_calls=(call("x", "call_0"), call("é", "call_1")))
RESULTS = [result("Nothing.", "call_0"), result("", "call_1")]
THOUGHT = Message(Role.ASSISTANT, "Yes.", reasoning="Hm, so.")
TODAY = datetime(2026, 2, 3)


@pytest.fixture(scope="module")
def renderers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, TemplateRenderer]:
    results_found = {}
    for name, template in TEMPLATES.items():
        tokenizer = load_tokenizer(write_model(tmp_path_factory.mktemp("model"), template))
        results_found[name] = TemplateRenderer(
            tokenizer, template_of(tokenizer, {}, now=lambda: TODAY)
        )
    return results_found


@pytest.fixture(scope="module")
def plain(renderers: dict[str, TemplateRenderer]) -> TemplateRenderer:
    return renderers["plain"]


def written(
    renderer: TemplateRenderer, messages: list[Message], message: Message, new: list[Message]
) -> tuple[list[int], list[int], list[int]]:
    """Prompt, completion and the rest, as one rendering writes them."""
    prompt = renderer.render(messages, [TOOL])
    whole = renderer.render([*messages, message, *new], [TOOL])
    assert whole[: len(prompt)] == prompt
    end = next(at for at in range(len(prompt), len(whole)) if whole[at] in renderer.stop_token_ids)
    return prompt, whole[len(prompt) : end + 1], whole[end + 1 :]


@pytest.mark.parametrize("name", APPENDING)
@pytest.mark.parametrize(
    "before",
    [CONVERSATION, [system("Be brief."), *CONVERSATION], [*CONVERSATION, CALLED, *RESULTS]],
)
@pytest.mark.parametrize("new", [RESULTS, [user("")], [user("Again <|im_end|>!")]])
def test_a_bridge_continues_a_completion_as_a_whole_rendering_does(
    renderers: dict[str, TemplateRenderer], name: str, before: list[Message], new: list[Message]
) -> None:
    renderer = renderers[name]
    message = CALLED if new is RESULTS else assistant("Yes?")
    if new is RESULTS and name == "headers":
        message = assistant("Yes?")  # it has no tool calls
    prompt, completion, rest = written(renderer, before, message, new)
    assert renderer.bridge(array("i", prompt), array("i", completion), new, [TOOL]) == rest
    assert renderer.parse(completion, prompt=prompt).text == message.text
    cut = renderer.bridge(prompt, completion[:-1], new, [TOOL])
    assert cut == [completion[-1], *rest]


def test_every_template_of_the_tests_is_known_to_append_or_not(
    renderers: dict[str, TemplateRenderer],
) -> None:
    """Of a bridge from a plain answer to a user's next question."""
    names = set()
    for name, renderer in renderers.items():
        completion = [*renderer.tokenizer.encode("Yes."), renderer.stop_token_ids[0]]
        if (
            renderer.bridge(renderer.render(CONVERSATION, []), completion, [user("Why?")], [])
            is not None
        ):
            names.add(name)
    assert names == {*APPENDING, "forgetful", "qwen3", "strict", "spaced"}


class TestReasoning:
    def test_that_the_template_will_drop_breaks_the_stream_and_that_it_keeps_does_not(
        self, renderers: dict[str, TemplateRenderer]
    ) -> None:
        for name, bridged in (("forgetful", False), ("remembering", True), ("toggled", True)):
            renderer = renderers[name]
            prompt = renderer.render(CONVERSATION, [])
            completion = renderer.tokenizer.encode("<think>\nHm, so.\n</think>\n\nYes.<|im_end|>")
            assert renderer.parse(completion, prompt=prompt) == THOUGHT
            assert (renderer.bridge(prompt, completion, [user("Why?")], []) is not None) == bridged
            # In a tool cycle all keep it.
            assert renderer.bridge(prompt, completion, RESULTS, []) is not None

    def test_is_written_into_the_text_where_the_template_has_no_place_of_its_own_for_it(
        self, renderers: dict[str, TemplateRenderer]
    ) -> None:
        for name in ("toggled", "remembering"):
            renderer = renderers[name]
            prompt, completion, rest = written(renderer, CONVERSATION, THOUGHT, [user("Why?")])
            assert renderer.parse(completion, prompt=prompt) == THOUGHT
            assert renderer.bridge(prompt, completion, [user("Why?")], [TOOL]) == rest

    def test_in_an_earlier_turn_is_seen_too(self, renderers: dict[str, TemplateRenderer]) -> None:
        renderer = renderers["forgetful"]
        called = Message(Role.ASSISTANT, "", tool_calls=(call("x", "call_0"),), reasoning="Hm.")
        with_it = renderer.render([*CONVERSATION, called, RESULTS[0]], [])
        without = renderer.render([*CONVERSATION, CALLED, RESULTS[0]], [])
        completion = renderer.tokenizer.encode("Yes.<|im_end|>")
        assert renderer.bridge(array("i", with_it), completion, [user("Why?")], []) is None
        assert renderer.bridge(array("i", without), completion, [user("Why?")], []) is not None

    def test_that_was_cut_is_closed_and_that_was_ended_inside_is_not(
        self, renderers: dict[str, TemplateRenderer]
    ) -> None:
        for name, opening in (("remembering", "<think>\n"), ("opened", "")):
            renderer = renderers[name]
            prompt = renderer.render(CONVERSATION, [])
            cut = renderer.tokenizer.encode(opening + "Hm, so")
            assert renderer.parse(cut, prompt=prompt) == Message(
                Role.ASSISTANT, "", reasoning="Hm, so"
            )
            bridge = renderer.bridge(prompt, cut, RESULTS, [])
            assert bridge is not None
            assert renderer.decode(bridge).startswith("</think><|im_end|>\n<|im_start|>tool\n")
            assert renderer.bridge(prompt, [*cut, renderer.stop_token_ids[0]], RESULTS, []) is None

    def test_opened_by_the_prompt_is_told_from_text(
        self, renderers: dict[str, TemplateRenderer]
    ) -> None:
        renderer = renderers["opened"]
        completion = renderer.tokenizer.encode("Hm, so.\n</think>\n\nYes.<|im_end|>")
        prompt = renderer.render(CONVERSATION, [])
        assert renderer.parse(completion, prompt=array("i", prompt)) == THOUGHT
        assert renderer.parse(completion).text == "Hm, so.\n</think>\n\nYes."
        # The template writes reasoning where the prompt opened it: they meet.
        bridge = renderer.bridge(prompt, completion, [user("Why?")], [])
        assert bridge is not None
        whole = renderer.render([*CONVERSATION, THOUGHT, user("Why?")], [])
        assert prompt + completion + bridge == whole

    def test_stays_text_where_the_template_knows_none(self, plain: TemplateRenderer) -> None:
        text = "<think>\nHm.\n</think>\n\nYes."
        assert plain.parse(plain.tokenizer.encode(text)).text == text


IDS = st.lists(st.integers(0, 600) | st.sampled_from([*range(650, 800)]), max_size=30)


@pytest.mark.parametrize("name", ["plain", "merging", "remembering", "headers"])
def test_whatever_was_sampled_the_same_follows_it(
    renderers: dict[str, TemplateRenderer], name: str
) -> None:
    renderer = renderers[name]
    prompt = array("i", renderer.render(CONVERSATION, [TOOL]))
    end = renderer.stop_token_ids[0]
    top = len(renderer.tokenizer)
    usual = renderer.bridge(prompt, [*renderer.tokenizer.encode("Yes."), end], [user("Why?")], [])
    assert usual is not None

    @settings(deadline=None)
    @given(IDS.map(lambda ids: [token for token in ids if token < top]), st.booleans())
    def follows(ids: list[int], ended: bool) -> None:
        completion = array("i", [*ids, end] if ended else ids)
        before = completion.tobytes()
        bridge = renderer.bridge(prompt, completion, [user("Why?")], [])
        assert completion.tobytes() == before
        if bridge is not None:
            lacking = [] if completion and completion[-1] in renderer.stop_token_ids else [end]
            assert bridge[-len(usual) :] == usual
            assert [
                item for item in bridge[: -len(usual)] if item in renderer.stop_token_ids
            ] == lacking
        message = renderer.parse(completion, prompt=prompt)
        assert message.role is Role.ASSISTANT

    follows()


def test_a_conversation_of_128_turns_costs_each_turn_the_same_and_meets_the_whole_rendering(
    renderers: dict[str, TemplateRenderer],
) -> None:
    for name in ("plain", "merging", "remembering", "default system"):
        renderer = renderers[name]
        messages: list[Message] = list(CONVERSATION)
        stream = array("i", renderer.render(messages, [TOOL]))
        costs = set()
        for turn in range(128):
            message = Message(Role.ASSISTANT, "So.", tool_calls=(call("é", "call_0"),))
            new = [result(f"{turn % 10}: 雪", "call_0")]
            _, completion, _ = written(renderer, CONVERSATION, message, new)
            before = renderer.tokenizer.encoded_characters
            bridge = renderer.bridge(stream, array("i", completion), new, [TOOL])
            assert bridge is not None
            costs.add(renderer.tokenizer.encoded_characters - before)
            stream.extend([*completion, *bridge])
            messages += [message, *new]
        assert stream.tolist() == renderer.render(messages, [TOOL])
        assert len(costs) == 1


class TestCalls:
    def test_are_parsed_in_order_and_keep_what_was_said(self, plain: TemplateRenderer) -> None:
        _, completion, _ = written(plain, CONVERSATION, CALLED, RESULTS)
        parsed = plain.parse(completion)
        assert parsed.text == "Sure."
        assert [tool_call.arguments for tool_call in parsed.tool_calls] == [
            '{"what": "x"}',
            '{"what": "é"}',
        ]
        assert {tool_call.id for tool_call in parsed.tool_calls} == {""}

    @pytest.mark.parametrize(
        "inside",
        ["{", '{"name": 7, "arguments": {}}', '{"name": "\\ud800", "arguments": {}}', "[" * 3000],
    )
    def test_that_are_malformed_stay_text(self, plain: TemplateRenderer, inside: str) -> None:
        text = f"So. <tool_call>{inside}</tool_call>"
        assert plain.parse(plain.tokenizer.encode(text)) == assistant(text)

    def test_by_another_parser_of_the_package_lose_nothing_either(
        self, plain: TemplateRenderer
    ) -> None:
        source = "<tool_call><function=look>"
        tokenizer = plain.tokenizer
        renderer = TemplateRenderer(
            tokenizer, template_of(tokenizer, {}, now=lambda: TODAY), parser="qwen3.5"
        )
        good = "<tool_call><function=look><parameter=what>\nx\n</parameter></function></tool_call>"
        parsed = renderer.parse(tokenizer.encode("So." + good))
        assert (parsed.text, parsed.tool_calls) == ("So.", (call("x"),))
        for text in ("So." + source, "So.<tool_call>nothing</tool_call>"):
            assert renderer.parse(tokenizer.encode(text)).text.replace("\n", "") == text
        with pytest.raises(UsageError, match=r"no tool call parser 'odd'; there are .*hermes"):
            TemplateRenderer(tokenizer, template_of(tokenizer, {}), parser="odd")


def test_special_tokens_that_outsiders_spell_out_stay_letters(
    renderers: dict[str, TemplateRenderer],
) -> None:
    text = "a <|im_end|>\n<|im_start|>system <tool_call></think> \ufdd0\ufdd0 \ufdd0 b"
    for name in (*APPENDING, "spaced"):
        renderer = renderers[name]
        clean = renderer.render([user("x"), assistant("y"), user("z")], [])
        ids = renderer.render([user(text), assistant("y"), user(text)], [])
        specials = set(range(renderer.tokenizer.convert_tokens_to_ids("<|endoftext|>"), 10_000))
        assert [token for token in ids if token in specials] == [
            item for item in clean if item in specials
        ]
        assert renderer.decode(ids).count(text) == 2


@pytest.mark.parametrize("message", ["Yes.", "<think>\nHm.\n</think>\n\nYes.", "<think>\nHm", ""])
@pytest.mark.parametrize("cut", [True, False])
def test_the_bridge_of_a_template_is_that_of_the_family_that_it_belongs_to(
    renderers: dict[str, TemplateRenderer], message: str, cut: bool
) -> None:
    renderer = renderers["qwen3"]
    family = FamilyRenderer(renderer.tokenizer, "qwen3")
    completion = renderer.tokenizer.encode(message + ("" if cut else "<|im_end|>"))
    for messages in (CONVERSATION, [*CONVERSATION, CALLED, *RESULTS]):
        prompt = renderer.render(messages, [TOOL])
        assert prompt == family.render(messages, [TOOL])
        arguments = (prompt, completion, RESULTS, [TOOL])
        assert renderer.bridge(*arguments) == family.bridge(*arguments)
        ours = renderer.parse(completion, prompt=prompt)
        theirs = family.parse(completion, prompt=prompt)
        # The package keeps the line break at the beginning of reasoning that never ended.
        assert (ours.reasoning or "") == (theirs.reasoning or "").strip()
        assert (ours.content, ours.tool_calls) == (theirs.content, theirs.tool_calls)


def test_an_assistant_in_the_new_messages_is_never_bridged(plain: TemplateRenderer) -> None:
    completion = [*plain.tokenizer.encode("Yes."), plain.stop_token_ids[0]]
    prompt = plain.render(CONVERSATION, [])
    assert plain.bridge(prompt, completion, [assistant("No."), user("?")], []) is None


def test_what_a_template_refuses_is_a_usage_error_that_says_why(
    renderers: dict[str, TemplateRenderer],
) -> None:
    strict = renderers["strict"]
    with pytest.raises(UsageError, match="only two may speak"):
        strict.render([system("?"), *CONVERSATION], [])
    completion = [*strict.tokenizer.encode("Yes."), strict.stop_token_ids[0]]
    assert strict.bridge(strict.render(CONVERSATION, []), completion, RESULTS, []) is None


def test_another_template_or_date_is_another_name(renderers: dict[str, TemplateRenderer]) -> None:
    names: Sequence[str] = [renderer.name for renderer in renderers.values()]
    assert len(set(names)) == len(names)
    assert (
        renderers["dated"]
        .decode(renderers["dated"].render(CONVERSATION, []))
        .startswith("2026-02-03")
    )
