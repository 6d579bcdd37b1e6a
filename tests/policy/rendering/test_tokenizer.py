import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.policy.rendering.jinja import template_of
from holdfast.policy.rendering.to_dicts import as_dicts, decode_arguments
from holdfast.policy.rendering.tokenizer import SPLIT, Tokenizer, load_tokenizer
from holdfast.records.errors import UsageError
from holdfast.records.message import Message, Role, assistant, system, user
from support.policy.chat_models import TEMPLATES, TOOL, call, result, write_model

TEXT = st.text(st.sampled_from(f"{SPLIT}\0a <|im_end|>") | st.characters(exclude_categories=["Cs"]))


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return load_tokenizer(write_model(tmp_path_factory.mktemp("model"), TEMPLATES["plain"]))


class TestText:
    @given(text=TEXT)
    def test_quoted_is_the_same_text_in_other_tokens(self, tokenizer: Tokenizer, text: str) -> None:
        markup = text + "<|im_end|>" + text + "</think>" + text
        ids = tokenizer.encode(tokenizer.quoted(markup))
        assert tokenizer.decode(ids) == markup
        assert not {*ids} & {*tokenizer.convert_tokens_to_ids(["<|im_end|>", "</think>"])}

    @given(text=TEXT.filter(lambda text: SPLIT not in text and "<" not in text))
    def test_without_markup_is_quoted_as_it_is(self, tokenizer: Tokenizer, text: str) -> None:
        assert tokenizer.quoted(text) == text
        assert tokenizer.decode(tokenizer.encode(text)) == text

    def test_of_a_special_token_is_one_id(self, tokenizer: Tokenizer) -> None:
        ids = tokenizer.encode("<|im_start|>user\n")
        assert ids[0] == tokenizer.convert_tokens_to_ids("<|im_start|>")
        assert tokenizer.token(ids[0]) == "<|im_start|>"
        assert tokenizer.convert_tokens_to_ids("nothing of the kind") is None


class TestLoading:
    def test_names_what_is_missing(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match="is not a folder"):
            load_tokenizer(tmp_path / "nowhere")
        with pytest.raises(UsageError, match=r"has no tokenizer\.json"):
            load_tokenizer(tmp_path)
        (tmp_path / "tokenizer.json").write_text("{}")
        with pytest.raises(UsageError, match="is not a tokenizer"):
            load_tokenizer(tmp_path)

    def test_without_a_chat_template_says_so_only_when_one_is_needed(self, tmp_path: Path) -> None:
        bare = load_tokenizer(write_model(tmp_path))
        with pytest.raises(UsageError, match="has no chat template"):
            template_of(bare, {})

    def test_a_template_that_is_no_jinja_is_a_usage_error(self, tmp_path: Path) -> None:
        broken = load_tokenizer(write_model(tmp_path, "{% if %}"))
        with pytest.raises(UsageError, match="not Jinja"):
            template_of(broken, {})

    def test_reads_templates_and_tokens_where_models_keep_them(self, tmp_path: Path) -> None:
        folder = write_model(tmp_path)
        settings = {
            "eos_token": {"content": "<|eot_id|>"},
            "chat_template": [
                {"name": "default", "template": "plain {{ eos_token }}"},
                {"name": "tool_use", "template": "with {{ tools | tojson }}"},
            ],
            "added_tokens_decoder": {"99999": {"content": "<|eot_id|>", "special": True}},
        }
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))
        (folder / "generation_config.json").write_text('{"eos_token_id": [3, 5]}')
        results_found = load_tokenizer(folder)
        template = template_of(results_found, {})
        assert template.render([], [], opening=True) == "plain <|eot_id|>"
        assert template.render([], [{"é": 1}], opening=True) == 'with [{"é": 1}]'
        assert results_found.stop_token_ids() == (
            results_found.convert_tokens_to_ids("<|eot_id|>"),
            3,
            5,
        )

    def test_adds_declared_tokens_at_their_ids_and_refuses_others(self, tmp_path: Path) -> None:
        folder = write_model(tmp_path)
        next_id = len(load_tokenizer(folder))
        for identifier in (next_id, next_id + 7):
            declared = {str(identifier): {"content": "<|new|>", "special": True}}
            (folder / "tokenizer_config.json").write_text(
                json.dumps({"added_tokens_decoder": declared})
            )
            if identifier == next_id:
                assert load_tokenizer(folder).encode("<|new|>") == [next_id]
            else:
                with pytest.raises(UsageError, match="do not match"):
                    load_tokenizer(folder)

    def test_runs_no_code_of_the_folder_and_imports_no_transformers(self, tmp_path: Path) -> None:
        folder = write_model(tmp_path, TEMPLATES["plain"])
        settings = {"auto_map": {"AutoTokenizer": ["evil.Evil", None]}, "eos_token": "<|im_end|>"}
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))
        (folder / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
        code = (
            "import sys, holdfast; assert not {'tokenizers', 'jinja2'} & set(sys.modules);"
            "from holdfast.policy.rendering.select import renderer_for;"
            "from holdfast.records.message import user;"
            f"renderer = renderer_for({str(folder)!r}, family='template');"
            "assert renderer.render([user('x')], []);"
            "assert not {'transformers', 'torch', 'renderers', 'openai'} & set(sys.modules)"
        )
        subprocess.run([sys.executable, "-c", code], check=True)
        assert not (tmp_path / "ran").exists()


CONVERSATIONS: list[tuple[list[Message], list[dict[str, object]]]] = [
    ([user("Hi <b>'\"& é")], []),
    ([system("  Be brief. \n"), user(" x\n"), assistant("\ny "), user("z")], []),
    (
        [
            user("Look."),
            Message(Role.ASSISTANT, "", tool_calls=(call("é", "c1"),), reasoning="Hm."),
            result("<none>", "c1"),
            result("雪", "c2"),
        ],
        [TOOL, TOOL],
    ),
]


@pytest.mark.parametrize("name", [*TEMPLATES])
def test_templates_render_as_in_transformers(name: str, tmp_path: Path) -> None:
    from transformers import PreTrainedTokenizerFast

    folder = write_model(tmp_path, TEMPLATES[name])
    ours, theirs = load_tokenizer(folder), PreTrainedTokenizerFast.from_pretrained(folder)
    template = template_of(ours, {"enable_thinking": True})
    for messages, tools in CONVERSATIONS:
        if name == "strict" and {message.role for message in messages} - {
            Role.USER,
            Role.ASSISTANT,
        }:
            continue
        dicts = as_dicts(messages, quoted=str, arguments=decode_arguments, developer=False)
        for opening in (True, False):
            text = template.render(dicts, tools, opening=opening)
            assert text == theirs.apply_chat_template(
                # Reasoning that it would not show is put into the text first.
                [template.convert(item) for item in dicts] if name == "toggled" else dicts,
                tools=tools or None,
                add_generation_prompt=opening,
                tokenize=False,
                enable_thinking=True,
            )
            assert ours.encode(text) == theirs.encode(text, add_special_tokens=False)
            assert ours.decode(ours.encode(text)) == theirs.decode(theirs.encode(text))


@pytest.mark.parametrize(
    "source",
    [
        "{% for m in messages %}\n  {% if loop.first %}\n  x\n  {% endif %}\n{% endfor %}\ny\n",
        "{% for m in [1, 2, 3] %}{% if m == 2 %}{% continue %}{% endif %}{{ m }}{% endfor %}",
        "{% for m in [1, 2, 3] %}{% if m == 2 %}{% break %}{% endif %}{{ m }}{% endfor %}",
        "{{ {'b': '<é>', 'a': [1, none]} | tojson(indent=2) }}{{ {'b': 1, 'a': 2} | tojson }}",
        "{% generation %}{% set x = 1 %}{{ x }}{% endgeneration %}{{ x is defined }}",
        "{{ strftime_now('%Y') }}{{ bos_token }}{{ eos_token }}{{ unknown }}",
        "{{ messages[0]['content'].split(' ')[-1].upper() }}{{ messages[0].get('name', 'no') }}",
        "{% set ns = namespace(a=1) %}{% set ns.a = 2 %}{{ ns.a }}{{ dict(a=1) }}",
        "{%- macro f(x) %}{{ x | trim }}{% endmacro %}{{ f(' a ') }}{{ range(3) | list }}",
        "{{ messages[0] | items | list }}",
    ],
)
def test_the_environment_is_that_of_transformers(source: str, tmp_path: Path) -> None:
    from transformers import PreTrainedTokenizerFast

    folder = write_model(tmp_path, source)
    theirs = PreTrainedTokenizerFast.from_pretrained(folder)
    messages: list[dict[str, object]] = [{"role": "user", "content": "two words"}]
    text = template_of(load_tokenizer(folder), {}).render(messages, [], opening=False)
    assert text == theirs.apply_chat_template(messages, tokenize=False)


def test_a_template_cannot_leave_its_sandbox(tmp_path: Path) -> None:
    folder = write_model(tmp_path, "{{ messages.__class__.__mro__[1].__subclasses__() }}")
    template = template_of(load_tokenizer(folder), {})
    with pytest.raises(Exception, match="unsafe"):
        template.render([], [], opening=True)
