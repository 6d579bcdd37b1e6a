"""The optimizer: the step that does not ask for its norm is the step that does."""

import pytest
import torch

from holdfast.training.model.optimizer import Optimizer
from holdfast.training.settings import OptimizerSettings

RATE = 1e-2


def optimizer_of(values, *, dtype, on_gpu=False):
    parameters = {n: torch.nn.Parameter(v.clone().to(dtype)) for n, v in values.items()}
    optimizer = Optimizer(parameters, OptimizerSettings(learning_rate=RATE))
    if on_gpu:  # The fused kernel exists on the CPU, too.
        optimizer._on_gpu = True
        copies = list(optimizer._copies.values())
        optimizer._adamw = torch.optim.AdamW(copies, lr=RATE, weight_decay=0.0, fused=True)
    return parameters, optimizer


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_step_on_the_device_is_the_plain_one(dtype):
    torch.manual_seed(1)
    values = {"a": torch.randn(30, 4), "b": torch.randn(7)}
    sides = [optimizer_of(values, dtype=dtype, on_gpu=on_gpu) for on_gpu in (False, True)]
    norms = []
    for step in range(5):
        gradients = {n: torch.randn_like(v) * 10.0 ** (step - 2) for n, v in values.items()}
        if step == 3:
            gradients["b"][0] = float("nan")
        for parameters, optimizer in sides:
            for name, parameter in parameters.items():
                parameter.grad = gradients[name].clone().to(dtype)
            norms.append(optimizer.update(RATE))
            assert all(p.grad is None for p in parameters.values())
    torch.testing.assert_close(norms[::2], norms[1::2], equal_nan=True)
    (plain, first), (fused, second) = sides
    for name in values:
        torch.testing.assert_close(second.weights()[name], first.weights()[name])
        torch.testing.assert_close(fused[name], plain[name])
        torch.testing.assert_close(
            second.state()[f"step/{name}"], first.state()[f"step/{name}"], check_dtype=False
        )


@pytest.mark.parametrize("on_gpu", [False, True])
def test_gradients_that_are_not_finite_change_nothing(on_gpu):
    values = {"a": torch.ones(3)}
    parameters, optimizer = optimizer_of(values, dtype=torch.float32, on_gpu=on_gpu)
    parameters["a"].grad = torch.tensor([1.0, float("inf"), 1.0])
    assert not optimizer.update(RATE).isfinite()
    assert torch.equal(parameters["a"], values["a"])
