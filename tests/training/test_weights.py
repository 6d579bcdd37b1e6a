"""Versions of the weights: a name never stands for other bytes, and a folder is what is trained."""

import os
import subprocess
import sys

import pytest
import torch

from holdfast.embedded.model.files import TINY
from holdfast.journal.sqlite.journal import MemoryJournal
from holdfast.records.errors import LeaseLost
from holdfast.training.model.network import Lora, Network
from holdfast.training.packing import attention
from holdfast.training.run import weights
from holdfast.weights.probe import PREFIXES
from support.records import consuming, spec


async def test_a_name_never_stands_for_other_bytes():
    journal = MemoryJournal()
    run = await journal.create_run(spec(), (), sealed=False)
    consumer = await consuming(journal, run)

    async def publish(digest):
        name = await weights.choose_name(journal, consumer, 3, digest)
        await journal.publish_version(run, name, step=3, digest=digest, consumer=consumer)
        return name

    assert [await publish(digest) for digest in "aabcba"] == [
        *("step-3", "step-3", "step-3.2", "step-3.3", "step-3.2", "step-3"),
    ]
    await journal.unsubscribe(consumer)
    with pytest.raises(LeaseLost):
        await publish("d")


def test_a_digest_is_of_names_shapes_types_and_bytes():
    item = {"a": torch.zeros(2, 3), "b": torch.ones(1)}
    same = {"b": torch.ones(1), "a": torch.zeros(3, 2).T.contiguous().reshape(2, 3)}
    others = [
        {"a": torch.zeros(3, 2), "b": torch.ones(1)},
        {"a": torch.zeros(2, 3).double(), "b": torch.ones(1)},
        {"a": torch.zeros(2, 3), "c": torch.ones(1)},
        {"a": torch.zeros(2, 3), "b": torch.ones(1) + 1e-7},
    ]
    assert weights.digest_of(item) == weights.digest_of(same)
    assert len({weights.digest_of(result) for result in [item, *others]}) == 5


PUBLISH = """
import hashlib, sys
from pathlib import Path
from holdfast.training.run import weights
from holdfast.training.run.loop import TrainingState
from holdfast.embedded.model.files import TINY
from holdfast.training.settings import Lora, TrainingSettings
from holdfast.training.trainer import Trainer

out = Path(sys.argv[1])
settings = TrainingSettings(lora=Lora(rank=2))
trainer = Trainer(TINY, settings.trainer, lora=settings.lora)
state = TrainingState(trainer, settings, folder=out, run="first")
path = weights.write_folder(out / "weights", "step-0", trainer.network)
state.version = weights.WeightFolder("step-0", path, weights.digest_of(trainer.weights()))
state.save()
for file in sorted(path for path in out.rglob("*") if path.is_file()):
    print(file.relative_to(out), hashlib.sha256(file.read_bytes()).hexdigest())
"""


def test_what_is_published_and_saved_has_the_same_bytes_in_every_process(tmp_path):
    """With an adapter, of which peft keeps sets."""

    def publish(seed):
        env = {**os.environ, "PYTHONHASHSEED": seed, "OMP_NUM_THREADS": "1"}
        command = (sys.executable, "-c", PUBLISH, str(tmp_path / seed))
        return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True)

    first, second = [process.communicate()[0] for process in [publish("0"), publish("5")]]
    names = {line.split()[0] for line in first.splitlines()}
    assert names >= {
        "weights/step-0/adapter/adapter_config.json",
        "checkpoints/step-00000000/state.json",
    }
    assert second == first


def logits_of(network, ids=(5, 6, 7, 8)):
    with torch.no_grad():
        network.module.set_attn_implementation("sdpa")
        return network.module(torch.tensor([ids])).logits


def test_a_folder_is_a_model_with_its_tokenizer_and_a_second_one_replaces_it(tmp_path):
    network = Network(TINY)
    weights.write_folder(tmp_path, "step-1", network)
    with torch.no_grad():
        next(iter(network.parameters.values())).add_(0.5)
    path = weights.write_folder(tmp_path, "step-1", network)
    assert {"config.json", "model.safetensors", "tokenizer.json", "chat_template.jinja"} <= {
        file.name for file in path.iterdir()
    }
    assert [folder.name for folder in tmp_path.iterdir()] == ["step-1"]
    torch.testing.assert_close(logits_of(Network(path)), logits_of(network), rtol=0, atol=0)


def test_an_adapter_is_merged_into_the_folder_and_the_network_keeps_its_bits(tmp_path):
    pytest.importorskip("peft", reason="the extra `train`")
    network = Network(TINY, lora=Lora(4))
    with torch.no_grad():
        for parameter in network.parameters.values():
            parameter.copy_(torch.randn_like(parameter) / 10)
    before = {name: tensor.clone() for name, tensor in network.module.state_dict().items()}
    path = weights.write_folder(tmp_path, "step-1", network)
    after = network.module.state_dict()
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())
    merged, plain = Network(path), Network(TINY)
    assert set(merged.parameters) == set(plain.parameters)
    torch.testing.assert_close(logits_of(merged), logits_of(network), atol=2e-4, rtol=1e-4)
    assert (logits_of(merged) - logits_of(plain)).abs().max() > 0.1


def test_old_folders_are_removed(tmp_path):
    for name in ("step-1", "step-2", ".partial-step-3", "step-4"):
        (tmp_path / name).mkdir()
    weights.remove_old(tmp_path, ["step-2", "step-4"])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-2", "step-4"]


def test_a_folder_of_an_adapter_holds_the_adapter_too(tmp_path):
    pytest.importorskip("peft", reason="the extra `train`")
    path = weights.write_folder(tmp_path, "step-1", Network(TINY, lora=Lora(4)))
    files = {file.name for file in (path / weights.ADAPTER).iterdir()}
    assert {"adapter_config.json", "adapter_model.safetensors"} <= files


def test_scores_are_those_of_the_weights(tmp_path):
    network = Network(TINY)
    scores = weights.score(network)
    expected = logits_of(network, scores.ids)[0].log_softmax(-1).max(-1).values
    results = [float(expected[length - 1]) for length in PREFIXES]
    assert max(abs(a - b) for a, b in zip(results, scores.logprobs, strict=True)) < 1e-4
    with torch.no_grad():
        next(iter(network.parameters.values())).add_(0.5)
    network.module.set_attn_implementation(attention.NAME)
    other = weights.score(network).logprobs
    assert max(abs(a - b) for a, b in zip(other, scores.logprobs, strict=True)) > 0.01
