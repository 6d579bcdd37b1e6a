import copy
from array import array
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.policy.rendering.family import FamilyRenderer
from holdfast.policy.rendering.tokenizer import Tokenizer, load_tokenizer
from holdfast.records.errors import UsageError
from holdfast.records.message import FunctionCall, Message, Role, ToolCall, assistant, system, user
from support.policy.chat_models import FAMILIES, TOOL, call, result, write_model

CONVERSATION = [system("Be brief."), user("Look, naïvely: 雪.")]
CALL = call("x", "functions.look:0")
REPLIES = {
    "a call": Message(Role.ASSISTANT, "", tool_calls=(CALL,)),
    "text and a call": Message(Role.ASSISTANT, "Sure.", tool_calls=(CALL,)),
    "reasoning and a call": Message(Role.ASSISTANT, "", tool_calls=(CALL,), reasoning="Hm, so."),
}
RESULT = result("Nothing at all.", "functions.look:0")
NEW = {
    "a result": [RESULT],
    "two results": [RESULT, result("More.", "functions.look:1")],
    "a user": [user("Again!")],
    "a result and a user": [RESULT, user("And?")],
}
# Of these the package's own bridge and its own rendering do not meet after a call.
APART = {
    ("gemma4", "text and a call"),
    ("laguna-m.1", "a call"),
    ("laguna-m.1", "text and a call"),
    ("laguna-xs.2", "a call"),
    ("laguna-xs.2", "text and a call"),
}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return load_tokenizer(write_model(tmp_path_factory.mktemp("model")))


@pytest.fixture(scope="module")
def renderers(tokenizer: Tokenizer) -> dict[str, FamilyRenderer]:
    return {family: FamilyRenderer(tokenizer, family) for family in FAMILIES}


def written(renderer: FamilyRenderer, message: Message, new: Sequence[Message]) -> list[list[int]]:
    """Prompt, completion and the rest as one rendering writes them; empty if it rewrites."""
    prompt = renderer.render(CONVERSATION, [TOOL])
    whole = renderer.render([*CONVERSATION, message, *new], [TOOL])
    if whole[: len(prompt)] != prompt:
        return []
    end = next(at for at in range(len(prompt), len(whole)) if whole[at] in renderer.stop_token_ids)
    return [prompt, whole[len(prompt) : end + 1], whole[end + 1 :]]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_bridge_continues_a_completion_as_a_whole_rendering_does(
    renderers: dict[str, FamilyRenderer], family: str
) -> None:
    renderer = renderers[family]
    proven = 0
    for kind, message in REPLIES.items():
        parts = written(renderer, message, [RESULT])
        if not parts or (family, kind) in APART:
            continue
        prompt, completion, rest = parts
        assert renderer.bridge(prompt, array("i", completion), [RESULT], [TOOL]) == rest, kind
        proven += 1
    # Its template never shows reasoning again, and its prompt opens some: there is no meeting.
    assert proven or family in ("deepseek-r1", "laguna-m.1", "laguna-xs.2")


@pytest.mark.parametrize("family", FAMILIES)
def test_what_a_family_writes_is_parsed_back(
    renderers: dict[str, FamilyRenderer], family: str
) -> None:
    renderer = renderers[family]
    for kind, message in REPLIES.items():
        parts = written(renderer, message, [RESULT])
        if not parts or (family, kind) in APART:
            continue
        parsed = renderer.parse(parts[1], prompt=parts[0], tools=[TOOL])
        assert [(tool_call.name, tool_call.arguments) for tool_call in parsed.tool_calls] == [
            (CALL.name, CALL.arguments)
        ]
        if family != "llama-3":  # which writes a call instead of text
            assert parsed.text.strip() == message.text


def completions(renderer: FamilyRenderer) -> st.SearchStrategy[list[int]]:
    encode = renderer.tokenizer.encode
    pieces = [encode(text) for text in ("<think>", "Hm.\n", "</think>", "Sure.", "<tool_call>")]
    pieces += [encode('{"name": "look", "arguments": {}}'), encode("</tool_call>")]
    pieces += [[token] for token in renderer.stop_token_ids]
    for message in REPLIES.values():
        parts = written(renderer, message, [RESULT])
        pieces += [parts[1], parts[1][:-1]] if parts else []
    some = st.lists(st.integers(0, len(renderer.tokenizer) - 1), max_size=4)
    return st.lists(st.sampled_from(pieces) | some, max_size=4).map(
        lambda results: [token for piece in results for token in piece]
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_a_tail_of_the_prompt_gives_the_bridge_and_the_message_of_the_whole_prompt(
    renderers: dict[str, FamilyRenderer], family: str
) -> None:
    renderer = renderers[family]
    package = renderer._package
    first = renderer.render(CONVERSATION, [TOOL])
    reasoning_and_a_call = REPLIES["reasoning and a call"]
    longer = renderer.render(
        [*CONVERSATION, reasoning_and_a_call, RESULT, assistant("Oh."), *CONVERSATION[1:]], [TOOL]
    )
    middle = renderer.render([*CONVERSATION, reasoning_and_a_call, RESULT], [TOOL])

    @settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.sampled_from([first, middle, longer]), completions(renderer), st.sampled_from([*NEW]))
    def same(prompt: list[int], completion: list[int], new: str) -> None:
        dicts = renderer._dicts(NEW[new])
        whole = package.bridge_to_next_turn(prompt, completion, dicts, tools=[TOOL])
        bridge = renderer.bridge(array("i", prompt), array("i", completion), NEW[new], [TOOL])
        if bridge is None:
            kept = prompt + completion
            assert whole is None or whole.token_ids[: len(kept)] != kept
        else:
            assert whole.token_ids == prompt + completion + bridge
        parsed = renderer.parse(array("i", completion), prompt=array("i", prompt), tools=[TOOL])
        assert parsed == _parsed_whole(renderer, completion, prompt)

    same()


def _parsed_whole(renderer: FamilyRenderer, completion: list[int], prompt: list[int]) -> Message:
    whole = copy.copy(renderer)
    whole.tail = list  # type: ignore[method-assign, assignment]
    return whole.parse(completion, prompt=prompt, tools=[TOOL])


@pytest.mark.parametrize("family", ["qwen3", "kimi-k2", "llama-3", "qwen3.5", "deepseek-v3"])
def test_a_bridge_reads_and_encodes_as_much_in_turn_200_as_in_turn_2(
    renderers: dict[str, FamilyRenderer], family: str
) -> None:
    renderer = renderers[family]
    prompt = renderer.render(CONVERSATION, [TOOL])
    completion = [*renderer.tokenizer.encode("Hm.</think>Sure."), renderer.stop_token_ids[0]]
    costs = []
    for _ in range(200):
        before = renderer.tokenizer.encoded_characters
        bridge = renderer.bridge(array("i", prompt), array("i", completion), [RESULT], [TOOL])
        assert bridge is not None
        read = len(renderer.tail(prompt))
        costs.append((renderer.tokenizer.encoded_characters - before, read))
        prompt = prompt + completion + bridge
    assert set(costs[2:]) == {costs[1]}


def test_a_stream_is_not_cut_where_the_model_spoke_on_after_its_end(
    renderers: dict[str, FamilyRenderer],
) -> None:
    renderer = renderers["qwen3"]
    messages = renderer.tokenizer.encode("Sure.")
    after = [*messages, renderer.stop_token_ids[0], *messages]
    assert renderer.bridge(renderer.render(CONVERSATION, []), after, [RESULT], []) is None


def test_a_user_breaks_the_stream_where_the_family_drops_reasoning_unless_it_is_kept(
    renderers: dict[str, FamilyRenderer], tokenizer: Tokenizer
) -> None:
    dropping = renderers["qwen3"]
    keeping = FamilyRenderer(tokenizer, "qwen3", keep_reasoning=True)
    prompt = dropping.render(CONVERSATION, [])
    completion = [*tokenizer.encode("<think>\nHm\n</think>\n\nYes."), dropping.stop_token_ids[0]]
    assert dropping.bridge(prompt, completion, [user("Why?")], []) is None
    bridge = keeping.bridge(prompt, completion, [user("Why?")], [])
    assert bridge is not None
    assert keeping.decode(bridge) == "\n<|im_start|>user\nWhy?<|im_end|>\n<|im_start|>assistant\n"
    assert keeping.name != dropping.name


@pytest.mark.parametrize("family", FAMILIES)
def test_special_tokens_that_outsiders_spell_out_stay_letters(
    renderers: dict[str, FamilyRenderer], family: str
) -> None:
    renderer = renderers[family]
    markup = "".join(renderer.tokenizer.all_special_tokens) + "<tool_call></think><think>"

    def conversation(what: str) -> list[Message]:
        message = Message(Role.ASSISTANT, "", tool_calls=(call(f"q{what}", "functions.look:0"),))
        results_found = Message(
            Role.TOOL, f"c.{what}", tool_call_id="functions.look:0", name="look" + what
        )
        return [*CONVERSATION[:1], user(f"a.{what} b"), message, results_found]

    innocent, guilty = conversation(""), conversation(markup)
    tokenizer = renderer.tokenizer
    added = {*tokenizer.convert_tokens_to_ids(tokenizer.all_special_tokens)}
    added |= {*tokenizer.convert_tokens_to_ids(["<tool_call>", "<think>", "</think>"])}

    def specials(messages: list[Message]) -> list[int]:
        return [token for token in renderer.render(messages, []) if token in added]

    assert specials(guilty) == specials(innocent)
    assert markup in renderer.decode(renderer.render(guilty, []))


@pytest.mark.parametrize("family", FAMILIES)
def test_no_role_is_dropped_and_nothing_but_text_is_accepted(
    renderers: dict[str, FamilyRenderer], family: str
) -> None:
    renderer = renderers[family]
    message = [Message(Role.DEVELOPER, "Be terse, my friend."), user("")]
    assert "Be terse, my friend." in renderer.decode(renderer.render(message, []))
    parts = Message(Role.USER, [{"type": "text", "text": "one "}, {"type": "text", "text": "two"}])
    assert "one two" in renderer.decode(renderer.render([parts], []))
    image = Message(Role.USER, [{"type": "image_url", "image_url": {"url": "http://x"}}])
    with pytest.raises(UsageError, match="image_url"):
        renderer.render([image], [])
    with pytest.raises(UsageError, match="conversation"):
        renderer.render([], [])


@pytest.mark.parametrize(
    "inside",
    [
        "",
        "{",
        "7",
        '{"name": 7, "arguments": {}}',
        '{"name": ["f"], "arguments": {}}',
        '{"name": "\\ud800", "arguments": {}}',
        '{"arguments": {}}',
        "[" * 3000,
        "9" * 5000,
    ],
)
def test_a_malformed_call_stays_text_also_beside_a_good_one(
    renderers: dict[str, FamilyRenderer], inside: str
) -> None:
    renderer = renderers["qwen3"]
    bad = f"<tool_call>\n{inside}\n</tool_call>"
    good = '<tool_call>\n{"name": "look", "arguments": {"what": "\\ud800"}}\n</tool_call>'
    alone = renderer.parse([*renderer.tokenizer.encode(f"So. {bad}"), renderer.stop_token_ids[0]])
    assert not alone.tool_calls
    assert alone.text.replace("\n", " ") == f"So. {bad}".replace("\n", " ")
    both = renderer.parse(renderer.tokenizer.encode(bad + good))
    assert inside in both.text
    # Where the package's parser itself gives up, the good call is text too: it is not lost.
    assert [tool_call.name for tool_call in both.tool_calls] == ["look"] or good in both.text
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(both), type=Message) == both


def test_a_call_that_was_cut_stays_text_and_the_reasoning_before_it_is_kept(
    renderers: dict[str, FamilyRenderer],
) -> None:
    renderer = renderers["qwen3"]
    cut = '<tool_call>\n{"name": "look", "argum'
    parsed = renderer.parse(renderer.tokenizer.encode(f"<think>\nHm.\n</think>\n\nSo.{cut}"))
    assert (parsed.reasoning, parsed.tool_calls, parsed.text) == ("Hm.", (), f"So.\n{cut}")


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("arguments", ["", "{", "7", '"x"', '{"what": NaN}', "[" * 5000])
def test_arguments_that_are_no_object_do_not_stop_a_rendering(
    renderers: dict[str, FamilyRenderer], family: str, arguments: str
) -> None:
    odd = ToolCall("functions.look:0", FunctionCall("look", arguments))
    message = Message(Role.ASSISTANT, "", tool_calls=(odd,))
    assert renderers[family].render([*CONVERSATION, message, RESULT], [TOOL])


def test_the_name_tells_family_version_tokenizer_and_options(
    tokenizer: Tokenizer, tmp_path: Path
) -> None:
    renderer = FamilyRenderer(tokenizer, "qwen3")
    assert renderer.name.startswith("renderers:qwen3@")
    assert renderer.name == FamilyRenderer(tokenizer, "qwen3").name
    other = write_model(tmp_path)
    page = (other / "tokenizer.json").read_text(encoding="utf-8")
    (other / "tokenizer.json").write_text(page + " ", encoding="utf-8")
    quiet = FamilyRenderer(tokenizer, "qwen3", options={"enable_thinking": False})
    names = {renderer.name, FamilyRenderer(load_tokenizer(other), "qwen3").name, quiet.name}
    assert len(names) == 3
    assert quiet.decode(quiet.render(CONVERSATION, [])).endswith("<think>\n\n</think>\n\n")
