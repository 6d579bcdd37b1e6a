from datetime import datetime
from pathlib import Path

import pytest

from holdfast.policy.rendering.family import FamilyRenderer, families
from holdfast.policy.rendering.renderer import ByteRenderer
from holdfast.policy.rendering.select import renderer_for
from holdfast.policy.rendering.template import TemplateRenderer
from holdfast.records.errors import UsageError
from holdfast.records.message import user
from support.policy.chat_models import QWEN3, TEMPLATES, write_model

# How prime-qwen3 speaks when there is nothing but users and assistants.
CHATML = (
    "{%- for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}"
    "{%- endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def test_a_family_is_taken_when_it_is_named(tmp_path: Path) -> None:
    folder = write_model(tmp_path, TEMPLATES["plain"])
    renderer = renderer_for(folder, family="qwen3")
    assert isinstance(renderer, FamilyRenderer)
    assert renderer.name.startswith("renderers:qwen3@")


def test_bytes_need_no_tokenizer() -> None:
    assert isinstance(renderer_for("nowhere", family="bytes"), ByteRenderer)


def test_another_name_is_refused_with_the_names_that_there_are() -> None:
    with pytest.raises(UsageError, match="there is no renderer 'qwen4'; there are bytes, template"):
        renderer_for("nowhere", family="qwen4")
    with pytest.raises(UsageError, match=r"qwen3\.5"):
        renderer_for("nowhere", family="qwen4")
    assert "default" not in families()


def test_a_family_whose_tokens_the_tokenizer_lacks_is_refused(tmp_path: Path) -> None:
    folder = write_model(tmp_path)
    page = (folder / "tokenizer.json").read_text(encoding="utf-8")
    (folder / "tokenizer.json").write_text(page.replace("<|im_end|>", "<|im_fin|>"))
    with pytest.raises(UsageError, match="cannot be rendered as qwen3"):
        renderer_for(folder, family="qwen3")


def test_a_folder_that_goes_by_a_known_name_gets_the_template_if_the_family_renders_otherwise(
    tmp_path: Path,
) -> None:
    for name, config in (("Qwen3-8B", {}), ("tuned", {"model_type": "qwen3"})):
        folder = write_model(tmp_path / name, CHATML, **config)
        assert isinstance(renderer_for(folder), TemplateRenderer)


def test_a_folder_gets_the_family_if_it_renders_as_the_template_does(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "tuned", QWEN3, model_type="qwen3")
    renderer = renderer_for(folder)
    assert isinstance(renderer, FamilyRenderer)
    assert renderer.family == "qwen3"
    other = write_model(tmp_path / "other", QWEN3, model_type="unheard")
    assert isinstance(renderer_for(other), TemplateRenderer)


def test_without_a_chat_template_a_family_has_to_be_named(tmp_path: Path) -> None:
    folder = write_model(tmp_path)
    with pytest.raises(UsageError, match=r"no chat template; .* name the model's family"):
        renderer_for(folder)


def test_a_date_makes_a_template_that_asks_for_it_the_same_tomorrow(tmp_path: Path) -> None:
    folder = write_model(tmp_path, TEMPLATES["dated"])
    chosen = renderer_for(folder, family="template", date=datetime(2026, 1, 2))
    assert chosen.decode(chosen.render([user("x")], [])).startswith("2026-01-02")
    assert chosen.name != renderer_for(folder, family="template").name


def test_what_only_one_kind_of_renderer_can_do_is_not_ignored_by_the_other(tmp_path: Path) -> None:
    folder = write_model(tmp_path, TEMPLATES["plain"])
    for family in ("template", None):
        with pytest.raises(UsageError, match="only a family keeps reasoning"):
            renderer_for(folder, family=family, keep_reasoning=True)
    with pytest.raises(UsageError, match="parses its own tool calls"):
        renderer_for(folder, family="qwen3", tool_parser="hermes")
    with pytest.raises(UsageError, match=r"cannot be rendered as qwen3: .*odd"):
        renderer_for(folder, family="qwen3", options={"odd": 1})
