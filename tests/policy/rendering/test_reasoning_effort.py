"""Reasoning effort: written into the prompt where the template has a word for it, else refused."""

from pathlib import Path

import pytest

from holdfast.policy.rendering.family import FamilyRenderer
from holdfast.policy.rendering.jinja import template_of
from holdfast.policy.rendering.messages_only import MessagesOnly
from holdfast.policy.rendering.reasoning_effort import MAX_LEVELS, at_effort, renderer_at
from holdfast.policy.rendering.renderer import ByteRenderer
from holdfast.policy.rendering.template import TemplateRenderer
from holdfast.policy.rendering.tokenizer import load_tokenizer
from holdfast.records.encoding.tokens import pack_ids, unpack_ids
from holdfast.records.errors import Unsupported
from holdfast.records.message import system, user
from holdfast.records.sampling import Sampling
from holdfast.records.step import Generated
from holdfast.rollout.replay.prompt import Stream
from support.policy.chat_models import TEMPLATES, write_model

READING = (
    "{%- if reasoning_effort is defined %}{{ '<|im_start|>system\\nReasoning: ' "
    "+ reasoning_effort + '<|im_end|>\\n' }}{% endif %}" + TEMPLATES["plain"]
)
SWITCHED = TEMPLATES["plain"] + (
    "{%- if add_generation_prompt %}{{ '<think>\\n' }}"
    "{%- if enable_thinking is defined and not enable_thinking %}"
    "{{ '\\n</think>\\n\\n' }}{% endif %}"
    "{% endif %}"
)
"""As Qwen's: it opens the reasoning, and closes it at once where there is to be none."""
LOCAL = "{%- set reasoning_effort = 'always' %}{{ reasoning_effort }}" + TEMPLATES["plain"]
MENTIONING = "{# reasoning_effort #}{{ 'reasoning_effort' }}" + TEMPLATES["plain"]
CONVERSATION = [user("Well?")]


def renderer_of(folder: Path, template: str) -> TemplateRenderer:
    tokenizer = load_tokenizer(write_model(folder, template))
    return TemplateRenderer(tokenizer, template_of(tokenizer, {}))


def test_a_template_that_reads_it_writes_it(tmp_path: Path) -> None:
    renderer = renderer_of(tmp_path, READING)
    plain, low = (
        renderer.render(CONVERSATION, []),
        at_effort(renderer, "low").render(CONVERSATION, []),
    )
    assert "Reasoning: low" in renderer.decode(low)
    assert "Reasoning" not in renderer.decode(plain)
    assert renderer.render(CONVERSATION, []) == plain
    assert at_effort(renderer, None) is renderer


def test_a_turn_at_an_effort_is_bridged_as_any_other(tmp_path: Path) -> None:
    renderer = at_effort(renderer_of(tmp_path, READING), "high")
    prompt = renderer.render(CONVERSATION, [])
    message = [*renderer.tokenizer.encode("So."), renderer.stop_token_ids[0]]  # type: ignore[attr-defined]
    bridge = renderer.bridge(prompt, message, [user("And?")], [])
    assert bridge is not None
    assert "Reasoning" not in renderer.decode(bridge)


def test_the_renderer_keeps_its_name_since_the_effort_is_the_samplings(tmp_path: Path) -> None:
    renderer = renderer_of(tmp_path, READING)
    assert at_effort(renderer, "low").name == renderer.name
    assert at_effort(renderer, "low") is at_effort(renderer, "low")


def test_however_many_efforts_are_asked_for_few_are_kept(tmp_path: Path) -> None:
    renderer = renderer_of(tmp_path, READING)
    for number in range(3 * MAX_LEVELS):
        level = f"level-{number}"
        assert f"Reasoning: {level}" in renderer.decode(
            at_effort(renderer, level).render(CONVERSATION, [])
        )
    assert len(renderer._variants) == MAX_LEVELS


def test_none_turns_thinking_off_where_the_template_knows_how(tmp_path: Path) -> None:
    renderer = renderer_of(tmp_path, SWITCHED)
    assert renderer.reasons
    assert renderer.decode(renderer.render(CONVERSATION, [])).endswith("<think>\n")
    quiet = at_effort(renderer, "none").render(CONVERSATION, [])
    assert renderer.decode(quiet).endswith("<think>\n\n</think>\n\n")
    with pytest.raises(Unsupported, match="never reads reasoning_effort"):
        at_effort(renderer, "low")


def test_none_asks_nothing_of_a_model_that_never_reasons(tmp_path: Path) -> None:
    for renderer in (ByteRenderer(), renderer_of(tmp_path, TEMPLATES["plain"])):
        assert at_effort(renderer, "none") is renderer


def test_none_is_refused_where_reasoning_cannot_be_turned_off(tmp_path: Path) -> None:
    always = TEMPLATES["plain"] + "{{ '<think>\n' }}{# </think> #}"
    with pytest.raises(Unsupported, match="never reads reasoning_effort"):
        at_effort(renderer_of(tmp_path, always), "none")


@pytest.mark.parametrize("template", [TEMPLATES["plain"], LOCAL, MENTIONING])
def test_a_template_that_does_not_read_it_is_told_apart(tmp_path: Path, template: str) -> None:
    with pytest.raises(Unsupported, match="never reads reasoning_effort") as refused:
        at_effort(renderer_of(tmp_path, template), "low")
    assert refused.value.what == "reasoning_effort"
    assert refused.value.why == "its chat template never reads it"


def test_bytes_have_no_word_for_it_and_messages_need_none() -> None:
    with pytest.raises(Unsupported, match="'bytes' has no words for it"):
        at_effort(ByteRenderer(), "low")
    messages = MessagesOnly()
    assert at_effort(messages, "low") is messages


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("family"), TEMPLATES["plain"])


@pytest.mark.parametrize(
    ("family", "effort", "other"),
    [("qwen3.8", "low", "medium"), ("glm-5.3", "high", "low"), ("hy3", "high", "low")],
)
def test_a_family_that_knows_efforts_writes_each_its_own_way(
    folder: Path, family: str, effort: str, other: str
) -> None:
    renderer = FamilyRenderer(load_tokenizer(folder), family)
    request = [system("Be kind."), *CONVERSATION]
    plain, first, two = (
        at_effort(renderer, level).render(request, []) for level in (None, effort, other)
    )
    assert len({tuple(ids) for ids in (first, two)}) == 2
    assert renderer.render(request, []) == plain


@pytest.mark.parametrize(("family", "effort"), [("qwen3", "low"), ("qwen3.8", "colossal")])
def test_a_family_refuses_an_effort_that_it_does_not_know(
    folder: Path, family: str, effort: str
) -> None:
    with pytest.raises(Unsupported, match="reasoning_effort cannot be followed"):
        at_effort(FamilyRenderer(load_tokenizer(folder), family), effort)


# --- other arguments of a template

OFF = '{"enable_thinking":false}'


def test_arguments_of_a_template_are_written_and_leave_other_renderers_alone(
    tmp_path: Path,
) -> None:
    renderer = renderer_of(tmp_path, SWITCHED)
    quiet = renderer_at(renderer, Sampling(chat_template_kwargs=OFF))
    assert renderer.decode(quiet.render(CONVERSATION, [])).endswith("<think>\n\n</think>\n\n")
    assert renderer.decode(renderer.render(CONVERSATION, [])).endswith("<think>\n")
    assert renderer_at(renderer, Sampling(chat_template_kwargs=OFF)) is quiet
    assert renderer_at(renderer, Sampling()) is renderer
    assert quiet.name == renderer.name, "they are the sampling's"


def test_arguments_and_an_effort_are_written_together(tmp_path: Path) -> None:
    both = READING + SWITCHED.removeprefix(TEMPLATES["plain"])
    renderer = renderer_of(tmp_path, both)
    at_effort(renderer, "low")  # What is kept at hand is not taken for another.
    result = renderer_at(renderer, Sampling(chat_template_kwargs=OFF, reasoning_effort="low"))
    text = renderer.decode(result.render(CONVERSATION, []))
    assert "Reasoning: low" in text
    assert text.endswith("</think>\n\n")
    open_ended = renderer_at(renderer, Sampling(reasoning_effort="low")).render(CONVERSATION, [])
    assert renderer.decode(open_ended).endswith("<think>\n")


def test_an_argument_that_no_template_reads_is_refused_by_its_name(tmp_path: Path) -> None:
    renderer = renderer_of(tmp_path, SWITCHED)
    with pytest.raises(Unsupported, match="never reads 'thinking'; leave it out") as refused:
        renderer_at(renderer, Sampling(chat_template_kwargs='{"thinking":true}'))
    assert refused.value.what == "chat_template_kwargs"
    assert str(tmp_path) not in refused.value.why
    with pytest.raises(Unsupported, match="'bytes' has no chat template"):
        renderer_at(ByteRenderer(), Sampling(chat_template_kwargs=OFF))
    messages = MessagesOnly()
    assert renderer_at(messages, Sampling(chat_template_kwargs=OFF)) is messages


def test_other_arguments_than_before_break_the_prefix_and_are_named(tmp_path: Path) -> None:
    renderer = renderer_of(tmp_path, SWITCHED)
    stream = Stream()
    first = stream.next_prompt(CONVERSATION, (), renderer=renderer, sampling=Sampling())
    packed = pack_ids([*renderer.tokenizer.encode("So.</think>Yes"), renderer.stop_token_ids[0]])
    reply = renderer.parse(unpack_ids(packed))
    step = Generated(
        "0", first.fingerprint, "", 0, first.delta.tobytes(), packed, b"", "stop", (), reply,
        tuple(CONVERSATION), "m", Sampling(),
    )  # fmt: skip
    stream.advance(step, CONVERSATION, ())
    messages = [*CONVERSATION, reply, user("And?")]
    other = Sampling(chat_template_kwargs=OFF)
    prompt = stream.next_prompt(messages, (), renderer=renderer_at(renderer, other), sampling=other)
    assert prompt.prefix_break == "the arguments of the chat template were changed"
