"""What a model's folder or a request could smuggle in, and numbers that must stay exact."""

import asyncio
import io
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast.embedded.http.server import render_metrics
from holdfast.embedded.model.load import load
from holdfast.embedded.scheduler.engine import DecodeEngine
from holdfast.records.errors import UsageError
from support.embedded.client import NAME, serving

CODE = """
from pathlib import Path

Path({mark!r}).write_text("ran")

from transformers import PretrainedConfig, PreTrainedTokenizerFast, Qwen2ForCausalLM


class Config(PretrainedConfig):
    model_type = "strange"


class Network(Qwen2ForCausalLM):
    config_class = Config


class Tokens(PreTrainedTokenizerFast):
    pass
"""


def edited(file: Path, **changes: Any) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


@pytest.fixture
def strange(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """A folder that brings code of its own, and the file that shows that the code ran.

    Whoever asks whether to run it is told yes.
    """
    model, mark = tmp_path / "model", tmp_path / "mark"
    shutil.copytree(folder, model)
    (model / "strange.py").write_text(CODE.format(mark=str(mark)))
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n" * 9))
    monkeypatch.setenv("HF_MODULES_CACHE", str(tmp_path / "modules"))
    return model, mark


def test_a_folder_that_brings_a_config_of_its_own_is_refused_and_not_run(
    strange: tuple[Path, Path],
) -> None:
    model, mark = strange
    auto = {"AutoConfig": "strange.Config", "AutoModelForCausalLM": "strange.Network"}
    edited(model / "config.json", model_type="strange", auto_map=auto)
    with pytest.raises(UsageError, match=r"config\.json cannot be read: .* code of its own"):
        load(model)
    assert not mark.exists()


def test_a_known_model_is_loaded_by_the_code_that_is_known(strange: tuple[Path, Path]) -> None:
    model, mark = strange
    auto = {"AutoConfig": "strange.Config", "AutoModelForCausalLM": "strange.Network"}
    edited(model / "config.json", auto_map=auto)
    edited(model / "tokenizer_config.json", auto_map={"AutoTokenizer": [None, "strange.Tokens"]})
    loaded = load(model)
    assert type(loaded.network).__name__ == "Qwen2ForCausalLM"
    assert type(loaded.network).__module__.startswith("transformers.")
    assert not mark.exists()


def test_a_folder_that_brings_a_tokenizer_of_its_own_never_runs_it(
    strange: tuple[Path, Path],
) -> None:
    model, mark = strange
    edited(
        model / "tokenizer_config.json",
        tokenizer_class="Tokens",
        auto_map={"AutoTokenizer": [None, "strange.Tokens"]},
    )
    try:
        load(model)
    except UsageError as error:
        assert "has no usable tokenizer" in str(error)  # noqa: PT017  # both ends are good
    assert not mark.exists()


# --- requests

BODY = {
    "model": NAME,
    "messages": [{"role": "user", "content": "hi"}],
    "max_tokens": 1,
    "return_token_ids": True,
}


@pytest.mark.parametrize(
    "options",
    [
        {"chat_template": "{{ 7 * 7 }} injected"},
        {"messages": "other"},
        {"tools": "other"},
        {"tokenize": False},
        {"documents": [{"title": "x"}]},
        {"anything": {"nested": 1}},
    ],
    ids=lambda options: next(iter(options)),
)
def test_an_option_that_replaces_what_is_rendered_is_refused(
    engine: DecodeEngine, options: dict[str, Any]
) -> None:
    async def main() -> tuple[int, Any]:
        async with serving(engine) as client:
            body = {**BODY, "chat_template_kwargs": options}
            return await client.post("/v1/chat/completions", body)

    status, answer = asyncio.run(main())
    assert status == 400, answer
    assert f"{next(iter(options))} cannot be given here" in json.dumps(answer)


def test_a_template_that_never_ends_does_not_stop_the_server(engine: DecodeEngine) -> None:
    loop = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"

    async def main() -> tuple[int, int]:
        async with serving(engine) as client:
            body = {**BODY, "chat_template_kwargs": {"chat_template": loop}}
            async with asyncio.timeout(60):
                status, _ = await client.post("/v1/chat/completions", body)
            return status, (await client.get("/health"))[0]

    assert asyncio.run(main()) == (400, 200)


def test_flags_and_words_reach_the_models_own_template(engine: DecodeEngine) -> None:
    async def main() -> list[Any]:
        async with serving(engine) as client:
            options = {"enable_thinking": False, "effort": "low", "budget": 3, "none": None}
            return [
                (await client.chat(**{**BODY, **more}))["prompt_token_ids"]
                for more in ({}, {"chat_template_kwargs": options})
            ]

    plain, flagged = asyncio.run(main())
    assert plain == flagged, "this template does not ask for them"


# --- metrics


@pytest.mark.parametrize("tokens", [1_234_567, 12_345_678, 987_654_321_012])
def test_counters_stay_exact_however_large_they_are(
    engine: DecodeEngine, monkeypatch: pytest.MonkeyPatch, tokens: int
) -> None:
    monkeypatch.setattr(engine.statistics, "prompt_tokens", tokens)
    monkeypatch.setattr(engine.statistics, "generation_tokens", tokens + 1)
    lines = render_metrics(engine, served=NAME).splitlines()
    assert f'holdfast_prompt_tokens_total{{model_name="{NAME}"}} {tokens}' in lines
    assert f'holdfast_generation_tokens_total{{model_name="{NAME}"}} {tokens + 1}' in lines
