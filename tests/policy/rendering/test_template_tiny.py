"""The model that comes with Holdfast is rendered by its own chat template."""

from array import array
from importlib.resources import files
from pathlib import Path

import pytest

from holdfast.policy.rendering.jinja import template_of
from holdfast.policy.rendering.select import renderer_for
from holdfast.policy.rendering.template import TemplateRenderer
from holdfast.policy.rendering.to_dicts import as_dicts, decode_arguments
from holdfast.policy.rendering.tokenizer import load_tokenizer
from holdfast.records.message import Message, Role, assistant, system, user
from support.policy.chat_models import TOOL, call, result

TINY = Path(str(files("holdfast.embedded"))) / "tiny"
CONVERSATION = [user("What is 12 + 30?")]
CALLED = Message(Role.ASSISTANT, "", tool_calls=(call("12 + 30", "call_0"),))
THOUGHT = Message(Role.ASSISTANT, "So.", tool_calls=(call("é", "call_0"),), reasoning="Hm.")


@pytest.fixture(scope="module")
def renderer() -> TemplateRenderer:
    chosen = renderer_for(TINY)
    assert isinstance(chosen, TemplateRenderer)
    return chosen


@pytest.mark.parametrize("message", [CALLED, THOUGHT, assistant("42")])
@pytest.mark.parametrize("new", [[result("42")], [result("1"), result("2")], [user("And?")]])
@pytest.mark.parametrize(
    "before", [CONVERSATION, [system("Be brief."), *CONVERSATION, THOUGHT, result("7")]]
)
def test_the_bridge_continues_a_completion_as_a_whole_rendering_does(
    renderer: TemplateRenderer, message: Message, new: list[Message], before: list[Message]
) -> None:
    prompt = renderer.render(before, [TOOL])
    whole = renderer.render([*before, message, *new], [TOOL])
    assert whole[: len(prompt)] == prompt
    end = next(at for at in range(len(prompt), len(whole)) if whole[at] in renderer.stop_token_ids)
    completion, rest = array("i", whole[len(prompt) : end + 1]), whole[end + 1 :]
    assert renderer.bridge(array("i", prompt), completion, new, [TOOL]) == rest
    assert renderer.bridge(prompt, completion[:-1], new, [TOOL]) == whole[end:]
    parsed = renderer.parse(completion, prompt=prompt, tools=[TOOL])
    assert (parsed.text, parsed.reasoning) == (message.text, message.reasoning)
    assert [tool_call.function for tool_call in parsed.tool_calls] == [
        tool_call.function for tool_call in message.tool_calls
    ]


def test_the_template_renders_as_in_transformers() -> None:
    from transformers import PreTrainedTokenizerFast

    theirs, ours = PreTrainedTokenizerFast.from_pretrained(TINY), load_tokenizer(TINY)
    template = template_of(ours, {})
    messages = [
        system("Be brief."),
        *CONVERSATION,
        THOUGHT,
        result("<7> é"),
        assistant("7"),
        user("雪"),
    ]
    dicts = as_dicts(messages, quoted=str, arguments=decode_arguments, developer=True)
    for tools in ([], [TOOL]):
        text = template.render(dicts, tools, opening=True)
        assert ours.encode(text) == theirs.apply_chat_template(
            dicts, tools=tools or None, add_generation_prompt=True, return_dict=False
        )
