"""The network: packed rows give the numbers and gradients of one sequence at a time."""

import copy
import random
from pathlib import Path

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from holdfast.records.errors import UsageError
from holdfast.training.model.network import Lora, Network
from holdfast.training.model.plain import load_model
from holdfast.training.packing.attention import PackedLayout, attend
from holdfast.training.packing.head import token_logprobs
from holdfast.training.packing.rows import TokenSequence, pack
from support.embedded import tiny_models

TINY = Path(__file__).parents[2] / "src/holdfast/embedded/tiny"


@pytest.fixture(scope="module")
def network():
    return Network(TINY)


def group_of(members, seed=1):
    chance = random.Random(seed)
    prompt = [chance.randrange(3, 1000) for _ in range(30)]
    token_sequences = []
    for _ in range(members):
        ids = prompt + [chance.randrange(3, 1000) for _ in range(chance.randrange(5, 30))]
        token_sequences.append(TokenSequence(ids, list(range(30, len(ids)))))
    # One that leaves the others in the middle of what they sampled, and one that shares nothing.
    token_sequences.append(
        TokenSequence([*token_sequences[0].ids[:33], 7, 8, 9], [30, 31, 32, 33, 34, 35])
    )
    return [*token_sequences, TokenSequence([5, 6, 7, 8], [1, 3], family=1)]


def numbers_of(network, rows, sequences):
    """The logprob of each trained token, and the gradient of a weighted sum."""
    network.module.zero_grad()
    counts = [[0.0] * len(sequence.trained) for sequence in sequences]
    for row in rows:
        warmth = torch.tensor([0.5 + s % 3 / 2 for s in row.sequences])
        logprobs, entropies = network.logprobs(row, warmth)
        weights = torch.tensor(
            [(31 * s + i) % 7 - 3.0 for s, i in zip(row.sequences, row.indices, strict=True)]
        )
        ((logprobs + 0.1 * entropies) * weights).sum().backward()
        for s, i, value in zip(row.sequences, row.indices, logprobs.tolist(), strict=True):
            counts[s][i] = value
    gradient = torch.cat([p.grad.flatten() for p in network.parameters.values()])
    return torch.tensor([value for values in counts for value in values]), gradient


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("lora", [None, Lora(4)], ids=["full", "lora"])
def test_exact_logprobs_are_those_of_the_same_weights_in_float32(tmp_path, dtype, lora):
    ids, lengths = [(7919 * n + 11) % 1000 for n in range(64)], range(2, 65)
    rounded = Network(TINY, dtype=dtype, lora=lora)
    exact = rounded.exact_logprobs(ids, lengths)
    rounded.module.save_pretrained(tmp_path) if lora is None else rounded.module.float()
    plain = Network(tmp_path) if lora is None else rounded
    assert exact == pytest.approx(plain.best_logprobs(ids, lengths), abs=1e-5)
    assert {p.dtype for p in Network(TINY, dtype=dtype).parameters.values()} == {dtype}


def test_exact_logprobs_of_a_model_that_goes_one_sequence_at_a_time(tmp_path):
    model = tiny_models.gemma2(tmp_path / "model")
    ids, lengths = [(7919 * n + 11) % 100 for n in range(64)], range(2, 65)
    rounded, exact = Network(model, dtype=torch.bfloat16), Network(model)
    assert rounded.why_sequential
    rounded.module.load_state_dict(
        {name: value.bfloat16() for name, value in exact.module.state_dict().items()}
    )
    exact.module.load_state_dict(rounded.module.state_dict())
    assert rounded.exact_logprobs(ids, lengths) == pytest.approx(
        exact.best_logprobs(ids, lengths), abs=1e-5
    )


@pytest.mark.parametrize("share", [True, False])
def test_packing_and_sharing_change_neither_logprobs_nor_gradients(network, share):
    assert network.why_sequential == ""
    sequences = group_of(4)
    together = pack(sequences, budget=500, share=share)
    alone = [_renumbered(pack([s], budget=100)[0], n) for n, s in enumerate(sequences)]
    values, gradient = numbers_of(network, together, sequences)
    expected, exact = numbers_of(network, alone, sequences)
    torch.testing.assert_close(values, expected, atol=3e-5, rtol=1e-5)
    torch.testing.assert_close(gradient, exact, atol=1e-3, rtol=1e-3)


def _renumbered(row, number):
    row.sequences[:] = [number] * len(row.sequences)
    return row


def test_packed_is_what_the_model_itself_says(network):
    ids = group_of(1)[0].ids
    (row,) = pack([TokenSequence(ids, list(range(1, len(ids))))], budget=100)
    with torch.no_grad():
        result, _ = network.logprobs(row, torch.ones(len(row.targets)))
        network.module.set_attn_implementation("eager")
        logits = network.module(torch.tensor([ids])).logits[0, :-1]
        network.module.set_attn_implementation("holdfast_packed")
    expected = logits.log_softmax(-1).gather(-1, torch.tensor(ids[1:])[:, None])[:, 0]
    torch.testing.assert_close(result, expected, atol=3e-5, rtol=1e-5)


def test_the_head_in_chunks_has_the_gradients_of_the_whole(monkeypatch):
    monkeypatch.setattr("holdfast.training.packing.head.CHUNK_LOGITS", 3 * 11)
    torch.manual_seed(1)
    hidden = torch.randn(7, 5, requires_grad=True)
    weight, bias = torch.randn(11, 5, requires_grad=True), torch.randn(11, requires_grad=True)
    targets, warmth = torch.arange(7), torch.rand(7) + 0.5

    def whole():
        scaled = ((hidden @ weight.T + bias) / warmth[:, None]).log_softmax(-1)
        return scaled.gather(-1, targets[:, None])[:, 0], -(scaled.exp() * scaled).sum(-1)

    gradients = []
    for logprobs, entropies in (
        whole(),
        token_logprobs(hidden, weight, targets, temperature=warmth, bias=bias),
    ):
        total = (logprobs * torch.arange(7)).sum() + (entropies * torch.arange(7).flip(0)).sum()
        gradients.append([total, *torch.autograd.grad(total, (hidden, weight, bias))])
    for gradient, expected in zip(*gradients, strict=True):
        torch.testing.assert_close(gradient, expected)


class Elements(TorchDispatchMode):
    """Counts the elements that operations give: the most of one, and of all together."""

    def __init__(self):
        super().__init__()
        self.most = self.total = 0

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        result = operation(*args, **(kwargs or {}))
        for part in result if isinstance(result, tuple | list) else [result]:
            if isinstance(part, torch.Tensor):
                self.most = max(self.most, part.numel())
                self.total += part.numel()
        return result


def test_all_logits_of_a_row_never_exist_at_once(network, monkeypatch):
    monkeypatch.setattr("holdfast.training.packing.head.CHUNK_LOGITS", 16 * network.vocabulary)
    ids = [n % 900 + 3 for n in range(400)]
    (row,) = pack([TokenSequence(ids, list(range(1, len(ids))))], budget=400)
    with Elements() as elements:
        logprobs, entropies = network.logprobs(row, torch.ones(len(row.targets)))
        (logprobs + entropies).sum().backward()
    network.module.zero_grad()
    largest_weight = max(weight.numel() for weight in network.parameters.values())
    assert elements.most <= max(largest_weight, len(ids) * 384)
    assert elements.most < len(row.targets) * network.vocabulary / 2


def test_what_a_segment_costs_does_not_grow_with_its_row():
    """The gradient of a slice would be as long as the row that it was taken from."""

    def elements(segments):
        ids = [list(range(n, n + 20)) for n in range(segments)]
        (row,) = pack([TokenSequence(each, [19]) for each in ids], budget=10_000)
        states = [torch.randn(1, 2, len(row.ids), 4, requires_grad=True) for _ in range(3)]
        layout = PackedLayout(row, torch.device("cpu"))
        with Elements() as elements:
            attend(None, *states, None, packed_layout=layout)[0].sum().backward()
        return elements.total / segments

    assert elements(64) < 1.2 * elements(8)


def test_a_model_that_cannot_be_packed_goes_one_sequence_at_a_time(monkeypatch):
    def refuse(*_args, **_more):
        raise NotImplementedError("packed attention has no softcap")

    monkeypatch.setattr(Network, "_packed", refuse)
    alone = Network(TINY)
    assert "softcap" in alone.why_sequential
    (row,) = pack([group_of(1)[0]], budget=100)
    logprobs, _ = alone.logprobs(row, torch.ones(len(row.targets)))
    logprobs.sum().backward()
    assert all(p.grad is not None for p in alone.parameters.values())


def test_only_the_adapter_is_trained_and_can_be_taken_away():
    network = Network(TINY, lora=Lora(rank=4, alpha=8))
    assert all("lora_" in name for name in network.parameters)
    (row,) = pack([group_of(1)[0]], budget=100)
    ones = torch.ones(len(row.targets))
    before = network.logprobs(row, ones)[0].detach()
    with torch.no_grad():
        for parameter in network.parameters.values():
            parameter.add_(0.1)
    assert not torch.allclose(network.logprobs(row, ones)[0], before)
    with network.without_adapter():
        torch.testing.assert_close(network.logprobs(row, ones)[0].detach(), before)


def test_modules_that_the_model_does_not_have_are_named():
    with pytest.raises(UsageError, match=r"query_key_value.*q_proj"):
        Network(TINY, lora=Lora(targets=("query_key_value",)))


def test_a_folder_without_a_model_is_refused(tmp_path):
    with pytest.raises(UsageError, match="cannot be trained"):
        Network(tmp_path)


def raise_(_):
    raise RuntimeError("no compiler")


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (raise_, "(no compiler)"),
        (lambda output: 3 * output, "(their logprobs are then off by mean "),
    ],
)
def test_layers_that_compile_badly_stay_as_they_are(monkeypatch, wrong, why):
    def compile_badly(layer, **_):
        layer._compiled_call_impl = lambda *args, **named: wrong(layer._call_impl(*args, **named))

    monkeypatch.setattr(torch.nn.Module, "compile", compile_badly)
    network, plain = Network(TINY, compiled=True), Network(TINY)
    assert "its layers cannot be compiled" in network.why_slow
    assert why in network.why_slow
    assert plain.why_slow == ""
    (row,) = pack([TokenSequence(list(range(3, 20)), list(range(1, 17)))], budget=40)
    ones = torch.ones(16)
    assert torch.equal(network.logprobs(row, ones)[0], plain.logprobs(row, ones)[0])
    assert all(parameter.grad is None for parameter in network.parameters.values())


def steep(folder):
    """A model whose likely tokens are far from the others, as those of real models are."""
    model = load_model(TINY, torch.float32)
    with torch.no_grad():
        model.get_output_embeddings().weight.mul_(6.0)
    model.save_pretrained(folder)
    return folder


def test_layers_that_round_otherwise_are_taken_where_they_are_as_near_to_float32(
    tmp_path, monkeypatch
):
    """Two roundings to bfloat16 differ by more than each of them may be wrong."""

    def compile_in_float32(layer, **_):
        exact = copy.deepcopy(layer).float()

        def run(*arguments, **named):
            more = [tree_map(_as_float, each) for each in (arguments, named)]
            return exact(*more[0], **more[1]).to(torch.bfloat16)

        layer._compiled_call_impl = run

    folder = steep(tmp_path)
    plain = Network(folder, dtype=torch.bfloat16)
    monkeypatch.setattr(torch.nn.Module, "compile", compile_in_float32)
    network = Network(folder, dtype=torch.bfloat16, compiled=True)
    assert (plain.why_sequential, network.why_sequential, network.why_slow) == ("", "", "")
    row = network.trial.row
    with torch.no_grad():
        ones = torch.ones(len(row.targets))
        two = [each.logprobs(row, ones)[0] for each in (plain, network)]
    assert (two[0] - two[1]).abs().max() > 0.2, "no maximum would let it pass"


def _as_float(value):
    is_half = isinstance(value, torch.Tensor) and value.dtype == torch.bfloat16
    return value.float() if is_half else value
