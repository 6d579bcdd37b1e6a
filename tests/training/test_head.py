"""The head: every implementation that runs here gives the numbers and gradients of whole logits."""

import importlib.util
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from holdfast.training.packing import head
from holdfast.training.packing.head import token_logprobs
from holdfast.training.packing.tensors import to_tensor

IS_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
HAS_TRITON = importlib.util.find_spec("triton") is not None
NO_TRITON = "the kernels need Triton, which comes with torch for GPUs and not with that for CPUs"


@pytest.fixture(params=["plain", "kernels"])
def implementation(request, monkeypatch):
    """Plain torch, and the kernels by Triton's interpreter."""
    if request.param == "kernels":
        if not HAS_TRITON:
            pytest.skip(NO_TRITON)
        if not IS_INTERPRETED:
            pytest.skip("run by the last test of this file, in a process that interprets Triton")
        from holdfast.training.packing import kernels

        # Several blocks, the last of them in part.
        monkeypatch.setattr(kernels, "SCORE_BLOCK", 32)
        monkeypatch.setattr(kernels, "SLOPE_BLOCK", 32)
        monkeypatch.setattr(head, "_kernels", lambda device: kernels)
    return request.param


def whole(hidden, weight, targets, *, temperature, bias=None):
    """By all logits at once, in float64."""
    logits = hidden.double() @ weight.double().T
    logits = logits if bias is None else logits + bias.double()
    scaled = (logits / temperature[:, None].double()).log_softmax(-1)
    return scaled.gather(-1, targets[:, None])[:, 0], -(scaled.exp() * scaled).sum(-1)


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize(("tokens", "vocabulary"), [(7, 11), (9, 101), (1, 64)])
def test_values_and_gradients_are_those_of_whole_logits(
    implementation, monkeypatch, tokens, vocabulary, has_bias
):
    monkeypatch.setattr(head, "CHUNK_LOGITS", 3 * vocabulary)
    torch.manual_seed(tokens)
    inputs = [3 * torch.randn(tokens, 5), torch.randn(vocabulary, 5)]
    inputs += [torch.randn(vocabulary)] * has_bias
    inputs = [value.requires_grad_() for value in inputs]
    targets = torch.randint(0, vocabulary, (tokens,))
    more = {"temperature": torch.rand(tokens) + 0.5, "bias": inputs[2] if has_bias else None}
    numbers = []
    for function in (token_logprobs, whole):
        logprobs, entropies = function(*inputs[:2], targets, **more)
        weights = torch.linspace(-1, 2, tokens)
        total = (logprobs * weights).sum() + (entropies * weights.flip(0)).sum()
        numbers.append([logprobs, entropies, *torch.autograd.grad(total, inputs)])
    for number, expected in zip(*numbers, strict=True):
        torch.testing.assert_close(number.double(), expected.double(), atol=1e-5, rtol=1e-4)


def test_gradients_that_are_one_number_for_all_tokens(implementation):
    """The mean's gradient is a single number in memory."""
    torch.manual_seed(1)
    hidden, weight = torch.randn(6, 4, requires_grad=True), torch.randn(40, 4)
    targets, ones = torch.arange(6), torch.ones(6)
    result, expected = (
        torch.autograd.grad(function(hidden, weight, targets, temperature=ones)[0].mean(), hidden)
        for function in (token_logprobs, whole)
    )
    torch.testing.assert_close(result, expected, atol=1e-6, rtol=1e-4)


def test_a_frozen_weight_gets_no_gradient(implementation):
    hidden, weight = torch.randn(6, 4, requires_grad=True), torch.randn(40, 4)
    token_logprobs(hidden, weight, torch.arange(6), temperature=torch.ones(6))[0].sum().backward()
    assert hidden.grad is not None
    assert weight.grad is None


def test_a_token_that_cannot_be_chosen_spoils_nothing(implementation):
    if implementation == "plain":
        pytest.skip("0 × infinity is not a number in plain torch")
    hidden, weight = torch.randn(3, 4, requires_grad=True), torch.randn(40, 4)
    bias = torch.zeros(40)
    bias[7] = -float("inf")
    results = token_logprobs(hidden, weight, torch.arange(3), temperature=torch.ones(3), bias=bias)
    torch.cat(results).sum().backward()
    assert torch.cat(results).isfinite().all()
    assert hidden.grad.isfinite().all()


def test_kernels_that_are_wrong_are_not_used(monkeypatch):
    class Wrong:
        score = staticmethod(lambda *a: tuple(x + 1 for x in head._score(*a)))
        slope = staticmethod(head._slope)

    with pytest.raises(RuntimeError, match="not those of torch"):
        head._try_out(Wrong, torch.device("cpu"))
    head._try_out(
        type("Right", (), {"score": head._score, "slope": head._slope}), torch.device("cpu")
    )


def test_without_triton_the_reason_is_told():
    if torch.cuda.is_available():
        pytest.skip("there is a GPU, with Triton")
    kernels, why = head._fused.__wrapped__()
    assert kernels is None
    assert "Triton does not work here" in why
    assert head.why_unfused(torch.device("cpu")) == ""


def test_chunks_on_a_gpu_are_even_and_fit_its_tiles(monkeypatch):
    class Weight:
        is_cuda = True
        device = torch.device("cuda")

        def __len__(self):
            return 1000

    monkeypatch.setattr(head, "_gpu_chunk_logits", lambda _: 1000 * 1000)
    parts = head._chunks(2100, Weight())
    assert [part.start for part in parts] == [0, 768, 1536]
    assert head._chunks(700, Weight()) == [slice(0, 1000)]


@pytest.mark.parametrize(
    ("memory", "logits"), [(143_771 << 20, 2**30), (24 << 30, 3 << 26), (1 << 30, 1 << 26)]
)
def test_chunks_on_a_gpu_are_a_part_of_its_memory(monkeypatch, memory, logits):
    device = SimpleNamespace(total_memory=memory)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: device)
    monkeypatch.setattr(head, "CHUNK_LOGITS", 1 << 26)
    assert head._gpu_chunk_logits.__wrapped__(torch.device("cuda")) == logits


@pytest.mark.parametrize(
    ("values", "dtype"),
    [([], torch.float32), ([1, 2**40], torch.int64), ([0.1, 1.0], torch.float32)],
)
def test_lists_become_the_tensors_that_torch_makes_of_them(values, dtype):
    tensor = to_tensor(values, torch.device("cpu"))
    assert tensor.dtype == dtype
    assert torch.equal(tensor, torch.tensor(values))


@pytest.mark.skipif(IS_INTERPRETED, reason="this is the process that interprets Triton")
@pytest.mark.skipif(not HAS_TRITON, reason=NO_TRITON)
def test_the_kernels_by_tritons_interpreter():
    command = [sys.executable, "-m", "pytest", __file__, "-k", "kernels", "-q"]
    command += ["-p", "no:cacheprovider"]
    process = subprocess.run(
        command, env={**os.environ, "TRITON_INTERPRET": "1"}, capture_output=True, text=True
    )
    assert process.returncode == 0, process.stdout[-3000:]
