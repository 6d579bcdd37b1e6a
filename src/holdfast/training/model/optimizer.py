"""The optimizer: AdamW with a schedule, over float32 copies where the model is in less.

Everything that it knows can be read out and put back as plain tensors.
"""

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from holdfast.records.errors import UsageError
from holdfast.training.settings import OptimizerSettings

_MOMENTS = ("exp_avg", "exp_avg_sq")


class Optimizer:
    """Updates `parameters`, which have gradients, in place."""

    def __init__(self, parameters: Mapping[str, torch.nn.Parameter], settings: OptimizerSettings):
        self._parameters = dict(parameters)
        self._settings = settings
        self._copies = {
            name: p.detach().float().clone().requires_grad_() if p.dtype != torch.float32 else p
            for name, p in parameters.items()
        }
        self.has_copies = any(p is not self._copies[name] for name, p in parameters.items())
        on_gpu = any(p.is_cuda for p in parameters.values())
        self._adamw = torch.optim.AdamW(
            list(self._copies.values()),
            lr=settings.learning_rate,
            betas=(settings.beta1, settings.beta2),
            eps=settings.epsilon,
            weight_decay=settings.weight_decay,
            fused=on_gpu or None,
        )

    @property
    def weights(self) -> dict[str, Tensor]:
        """The trained parameters as exact as they are kept."""
        return {name: copy.detach() for name, copy in self._copies.items()}

    def update(self, rate: float) -> tuple[float, bool]:
        """One step down the gradients, which are then gone. (norm before clipping, whether it was
        done): gradients that are not finite change nothing."""
        for name, parameter in self._parameters.items():
            copy = self._copies[name]
            if copy is not parameter and parameter.grad is not None:
                copy.grad, parameter.grad = parameter.grad.float(), None
        norm = float(torch.nn.utils.clip_grad_norm_(self._copies.values(), self._settings.max_norm))
        is_finite = math.isfinite(norm)
        if is_finite:
            for group in self._adamw.param_groups:
                group["lr"] = rate
            self._adamw.step()
            self._write_back()
        self._adamw.zero_grad(set_to_none=True)
        return norm, is_finite

    def state(self) -> dict[str, Tensor]:
        """The moments and step counts, by parameter; nothing before the first step."""
        found: dict[str, Tensor] = {}
        for name, copy in self._copies.items():
            state = self._adamw.state.get(copy)
            if state:
                found |= {f"{moment}/{name}": state[moment] for moment in _MOMENTS}
                found[f"step/{name}"] = torch.as_tensor(state["step"]).reshape(1).cpu()
        return found

    def restore(self, weights: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> None:
        """Goes on from what `weights` and `state` gave. Raises `UsageError` if they do not fit."""
        if set(weights) != set(self._copies):
            odd = sorted(set(weights) ^ set(self._copies))[:3]
            raise UsageError(f"the checkpoint's weights are not this model's: {', '.join(odd)}")
        with torch.no_grad():
            for name, copy in self._copies.items():
                if copy.shape != weights[name].shape:
                    raise UsageError(f"the checkpoint's {name} has another shape than the model's")
                copy.copy_(weights[name])
        for name, copy in self._copies.items():
            if f"step/{name}" in state:
                self._adamw.state[copy] = {
                    "step": state[f"step/{name}"].reshape(()).clone().to(_step_device(copy)),
                    **{m: state[f"{m}/{name}"].to(copy.device).clone() for m in _MOMENTS},
                }
        self._write_back()

    @torch.no_grad()
    def _write_back(self) -> None:
        for name, parameter in self._parameters.items():
            if self._copies[name] is not parameter:
                parameter.copy_(self._copies[name])


def _step_device(copy: Tensor) -> torch.device:
    """Fused AdamW keeps its step count beside the weights, the plain one on the CPU."""
    return copy.device if copy.is_cuda else torch.device("cpu")
