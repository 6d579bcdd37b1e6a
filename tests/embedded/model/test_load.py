"""Which folders are served, and how the others are refused; the proof at start-up."""

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from holdfast.embedded.model.load import best_device, load
from holdfast.embedded.scheduler.engine import DecodeEngine
from holdfast.embedded.scheduler.slots import CacheSlots, common_prefix
from holdfast.records.errors import UsageError
from support.embedded import tiny_models
from support.embedded.client import ask


def changed(folder: Path, tmp_path: Path, change: Callable[[Path], object]) -> Path:
    copy = tmp_path / "model"
    shutil.copytree(folder, copy)
    change(copy)
    return copy


def configured(**changes: Any) -> Callable[[Path], object]:
    def change(path: Path) -> None:
        file = path / "config.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))

    return change


def pickled(path: Path) -> None:
    from safetensors.torch import load_file

    torch.save(load_file(path / "model.safetensors"), path / "pytorch_model.bin")
    (path / "model.safetensors").unlink()


def without_tokenizer(path: Path) -> None:
    for file in path.glob("token*"):
        file.unlink()


def lacking(path: Path) -> None:
    from safetensors.torch import load_file, save_file

    state = load_file(path / "model.safetensors")
    del state["model.layers.1.mlp.up_proj.weight"]
    save_file(state, path / "model.safetensors", metadata={"format": "pt"})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda path: (path / "config.json").unlink(), "it has no config.json"),
        (lambda path: (path / "config.json").write_text("{"), "config.json cannot be read"),
        (configured(model_type="nonesuch"), "config.json cannot be read"),
        (configured(is_encoder_decoder=True), "encoder-decoder"),
        (pickled, "no \\*.safetensors"),
        (lacking, "lacks weights"),
        (without_tokenizer, "tokenizer"),
    ],
)  # fmt: skip
def test_a_folder_that_cannot_be_served_says_why(
    folder: Path, tmp_path: Path, change: Callable[[Path], object], message: str
) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        load(changed(folder, tmp_path, change))
    assert "\n" not in str(caught.value)


def test_a_context_longer_than_the_models_is_refused(folder: Path) -> None:
    with pytest.raises(UsageError, match="--max-model-len 9999"):
        load(folder, max_length=9999)
    assert load(folder, max_length=100).max_length == 100


def test_end_tokens_come_from_the_generation_config_first(folder: Path, tmp_path: Path) -> None:
    def change(path: Path) -> None:
        (path / "generation_config.json").write_text('{"eos_token_id": [2, 7]}')

    assert load(changed(folder, tmp_path, change)).eos == {2, 7}
    assert load(folder).eos == {tiny_models.EOS}


def test_a_sliding_window_is_kept(tmp_path: Path) -> None:
    """Also where it ends inside a block; the proof compares it with transformers' own."""
    from transformers import MistralConfig, MistralForCausalLM

    torch.manual_seed(0)
    sizes = tiny_models._sizes(sliding_window=30, tie_word_embeddings=False)
    tiny_models._saved(MistralForCausalLM(MistralConfig(**sizes)), tmp_path)
    with DecodeEngine(load(tmp_path), max_batch=4) as engine:
        alone = ask(engine, list(range(3, 150))).result
        others = [ask(engine, list(range(9, 9 + n))) for n in (5, 70, 40)]
        assert ask(engine, list(range(3, 150))).result == alone
        for other in others:
            other.wait()


def neighbours_show(module: Any, inputs: Any, result: torch.Tensor) -> torch.Tensor:
    """What a careless kernel does: a row's last bits depend on the rows beside it."""
    return result * (1 + 1e-6 * torch.tanh(result.mean()))


def test_a_model_whose_results_depend_on_the_batch_is_run_alone(folder: Path) -> None:
    model = load(folder)
    model.network.model.layers[1].mlp.register_forward_hook(neighbours_show)
    with DecodeEngine(model, max_batch=8) as engine:
        assert "depend on the other requests" in engine.model.why_solo
        alone = ask(engine, list(range(3, 40))).result
        others = [ask(engine, list(range(9, 9 + n))) for n in (5, 30)]
        assert ask(engine, list(range(3, 40))).result == alone
        for other in others:
            other.wait()


def test_a_width_whose_bits_differ_is_not_used(folder: Path) -> None:
    model = load(folder)

    def wide_differs(module: Any, inputs: Any, result: torch.Tensor) -> torch.Tensor:
        return result * (1 + 1e-6) if result.shape[1] > 100 else result

    model.network.model.layers[1].mlp.register_forward_hook(wide_differs)
    with DecodeEngine(model, max_batch=32) as engine:
        assert engine._passes.widths == [4, 16, 32]
        assert ask(engine, list(range(3, 300))).wait().finish_reason == "length"


def test_attention_that_is_not_the_models_is_not_used(folder: Path) -> None:
    model = load(folder)
    for layer in model.network.model.layers:
        layer.self_attn.scaling *= 1.5
    engine = DecodeEngine(model, max_batch=4)
    original = model.network.set_attn_implementation

    def rescaled(name: str) -> None:
        for layer in model.network.model.layers:
            layer.self_attn.scaling *= 1 / 1.5 if name == "eager" else 1.5
        original(name)

    model.network.set_attn_implementation = rescaled
    with engine:
        assert "logprobs are off by" in engine.model.why_solo
        assert model.network.config._attn_implementation == "eager"


def test_the_package_is_imported_without_torch() -> None:
    import subprocess

    code = (
        "import sys, holdfast.embedded, holdfast.embedded.arguments;"
        "import holdfast.cli.commands.serving.serve;"
        "print([name for name in ('torch', 'numpy', 'asyncio') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_slot_is_chosen_by_what_it_holds_then_by_age() -> None:
    slots = CacheSlots(3)
    for held in ([1, 2, 3], [1, 2, 3, 4, 5], [9]):
        slots.release(slots.take([7])[0], held)
    assert slots.take([1, 2, 3, 4, 6]) == (1, 4)
    assert slots.take([1, 2, 3]) == (0, 2), "one token is left to compute"
    assert slots.take([5, 5]) == (2, 0)
    assert not slots.any_free
    slots.release(1, [1, 2])
    slots.forget()
    assert slots.take([1, 2, 3]) == (1, 0)


@pytest.mark.parametrize("shared", [0, 1, 63, 64, 65, 1000])
def test_the_common_beginning(shared: int) -> None:
    same = list(range(shared))
    assert common_prefix([*same, -1, 5], [*same, -2, 5]) == shared
    assert common_prefix(same, [*same, 1]) == shared


@pytest.mark.parametrize(("sizes", "expected"), [((64, 64), "cpu"), ((8_000, 8_000), "cuda")])
def test_only_a_large_model_takes_a_gpu(monkeypatch, sizes, expected):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    network = torch.nn.Linear(*sizes, device="meta")
    assert best_device(network).type == expected
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert best_device(network).type == "cpu"
