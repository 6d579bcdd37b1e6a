"""Each architecture is packed, goes one sequence at a time, or is refused: never silently wrong."""

import random
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the extra `train`")

import torch

from holdfast.records.errors import UsageError
from holdfast.training.model.network import Network
from holdfast.training.packing.rows import TokenSequence, pack
from support.architectures import (
    ARCHITECTURES,
    BOUNDARY,
    REFUSED,
    SEQUENTIAL,
    make_model,
)
from support.embedded.tiny_models import VOCABULARY

LONGEST = 200
DOCS = Path(__file__).parents[2] / "docs/training.md"
CHEAP = ("qwen2-moe-window", "phi3-longrope", "opt", "bloom")
ALL = [
    name if name in CHEAP else pytest.param(name, marks=pytest.mark.exhaustive)
    for name in ARCHITECTURES
]


def trainable(name):
    return ARCHITECTURES[name][2] != REFUSED


def sequences_for(network):
    """Longer than the windows; two of them begin alike."""
    chance = random.Random(5)
    numbers = [chance.randrange(3, VOCABULARY) for _ in range(2 * LONGEST)]
    lists = [numbers[:LONGEST], [*numbers[:90], *numbers[LONGEST : LONGEST + 60]], numbers[-70:]]
    return [TokenSequence(ids, list(range(1, len(ids)))) for ids in lists]


def logprobs_of(network, sequences):
    rows = [pack([sequence], budget=LONGEST)[0] for sequence in sequences]
    if not network.why_sequential:
        rows = pack(sequences, budget=2 * LONGEST)
    parts = [network.logprobs(row, torch.ones(len(row.targets)))[0] for row in rows]
    numbers = [
        (row.sequences[at] if len(rows) == 1 else number, row.indices[at])
        for number, row in enumerate(rows)
        for at in range(len(row.targets))
    ]
    return [value for _, value in sorted(zip(numbers, torch.cat(parts).tolist(), strict=True))]


def of_transformers(folder, sequences):
    """By nothing of ours."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    result = []
    for sequence in sequences:
        with torch.no_grad():
            logits = model(torch.tensor([sequence.ids])).logits[0, :-1]
        targets = torch.tensor(sequence.ids[1:])[:, None]
        result += logits.log_softmax(-1).gather(-1, targets)[:, 0].tolist()
    return result


@pytest.mark.parametrize("name", [n for n in ALL if trainable(getattr(n, "values", [n])[0])])
def test_what_is_trained_is_what_transformers_computes(name, tmp_path):
    folder = make_model(name, tmp_path)
    network = Network(folder, longest=LONGEST)
    assert bool(network.why_sequential) == (ARCHITECTURES[name][2] == SEQUENTIAL)
    sequences = sequences_for(network)
    expected = of_transformers(folder, sequences)
    assert logprobs_of(network, sequences) == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("name", [n for n in ALL if not trainable(getattr(n, "values", [n])[0])])
def test_a_model_whose_beginnings_change_with_the_length_is_refused_by_name(name, tmp_path):
    folder = make_model(name, tmp_path)
    with pytest.raises(UsageError) as caught:
        Network(folder, longest=LONGEST)
    assert str(folder) in str(caught.value)
    assert caught.match(f"cannot be trained: .*--row-tokens {BOUNDARY}$")
    network = Network(folder, longest=BOUNDARY)  # As the line says.
    assert network.why_sequential == ""
    sequences = [TokenSequence(s.ids[:BOUNDARY], s.trained[: BOUNDARY - 1])
                 for s in sequences_for(network)][1:]  # fmt: skip
    expected = of_transformers(folder, sequences)
    assert logprobs_of(network, sequences) == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize(
    ("name", "why"),
    [("stablelm", "do not pass on which tokens belong"), ("gpt-oss", "attention has no s_aux")],
)
def test_why_sequences_go_one_at_a_time_is_said_in_words(name, why, tmp_path):
    assert why in Network(make_model(name, tmp_path), longest=40).why_sequential


def test_a_window_longer_than_the_trial_is_not_seen_by_it(tmp_path):
    """So the trial is as long as the run's sequences may be."""
    folder = make_model("qwen2-moe-window", tmp_path)
    assert Network(folder, longest=40).why_sequential == ""
    assert "off by mean" in Network(folder, longest=LONGEST).why_sequential


@pytest.mark.exhaustive
def test_dropout_that_checkpointing_turns_on_is_refused(tmp_path):
    with pytest.raises(UsageError, match="cannot be trained so: packed rows are off by"):
        Network(make_model("opt", tmp_path), longest=LONGEST, gradient_checkpointing=True)


def test_checkpointed_layers_compute_the_same(tmp_path):
    folder = make_model("qwen2", tmp_path)
    row = pack(sequences_for(None), budget=2 * LONGEST)[0]
    gradients = []
    for is_checkpointed in (False, True):
        network = Network(folder, longest=64, gradient_checkpointing=is_checkpointed)
        network.logprobs(row, torch.ones(len(row.targets)))[0].sum().backward()
        gradients.append(torch.cat([p.grad.flatten() for p in network.parameters.values()]))
        assert any(part.training for part in network.module.modules()) == is_checkpointed
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_the_documentation_has_each_architecture_as_it_is_trained(name):
    rows = [line.split("|")[1:3] for line in DOCS.read_text().splitlines() if line.startswith("|")]
    (way,) = [way for names, way in rows if name in names.strip().split(", ")]
    assert way.strip().startswith(ARCHITECTURES[name][2])
