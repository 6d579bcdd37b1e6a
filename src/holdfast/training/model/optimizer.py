"""The optimizer is AdamW with a schedule, on float32 copies if the model has a smaller data type.

Its whole state can be read and restored as plain tensors. If the network is divided among ranks,
each rank updates its own part of every weight. The state that is read has all parts.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from holdfast.records.errors import UsageError
from holdfast.training.model.sharding import gather, local_part, part_of
from holdfast.training.ranks.group import RankGroup
from holdfast.training.settings import OptimizerSettings

_MOMENTS = ("exp_avg", "exp_avg_sq")


class Optimizer:
    """Updates `parameters`, from their gradients, in place."""

    def __init__(
        self,
        parameters: Mapping[str, torch.nn.Parameter],
        settings: OptimizerSettings,
        ranks: RankGroup | None = None,
    ):
        self._parameters = dict(parameters)
        self._settings = settings
        self._ranks = ranks or RankGroup()
        self._parts = {name: local_part(p) for name, p in parameters.items()}
        self._copies = {
            name: p.detach().float().clone().requires_grad_() if p.dtype != torch.float32 else p
            for name, p in self._parts.items()
        }
        self._on_gpu = any(p.is_cuda for p in parameters.values())
        self._adamw = torch.optim.AdamW(
            list(self._copies.values()),
            lr=settings.learning_rate,
            betas=(settings.beta1, settings.beta2),
            eps=settings.epsilon,
            weight_decay=settings.weight_decay,
            fused=self._on_gpu or None,
        )

    def weights(self) -> dict[str, Tensor]:
        """Gathers the trained parameters, in the precision in which the optimizer keeps them. All
        ranks call this method, and rank 0 gets the result."""
        return self._whole({name: copy.detach() for name, copy in self._copies.items()})

    def _whole(self, parts: Mapping[str, Tensor], prefix: str = "") -> dict[str, Tensor]:
        if self._ranks.size == 1:
            return {f"{prefix}{name}": part for name, part in parts.items()}
        gathered = {}
        for name, part in parts.items():
            whole = gather(part, self._parameters[name])
            if self._ranks.is_leader:
                gathered[f"{prefix}{name}"] = whole.cpu()
        return gathered

    def update(self, rate: float) -> Tensor:
        """Takes one step along the gradients, and clears them. Returns the norm of the gradients
        before clipping. If the norm is not finite, no weight is changed. Does not wait for a
        GPU."""
        self._gather()
        for group in self._adamw.param_groups:
            group["lr"] = rate
        norm = self._step_on_device() if self._on_gpu else self._step()
        self._adamw.zero_grad(set_to_none=True)
        return norm

    def _gather(self) -> None:
        """Moves the gradients to the copies, in float32."""
        parts = [
            (p, local_part(p.grad), self._copies[name])
            for name, p in self._parameters.items()
            if p.grad is not None and self._copies[name] is not p
        ]
        if not parts:
            return
        gradients = [torch.empty_like(copy) for _, _, copy in parts]
        torch._foreach_copy_(gradients, [part for _, part, _ in parts])
        for (parameter, _, copy), gradient in zip(parts, gradients, strict=True):
            copy.grad, parameter.grad = gradient, None

    def _norm(self) -> Tensor:
        """Returns the norm of the gradients of all ranks together."""
        gradients = [copy.grad for copy in self._copies.values() if copy.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients)
        if self._ranks.size == 1:
            return norm
        device = next(iter(self._copies.values())).device
        return self._ranks.add_up(norm.to(device).double().square()).sqrt().float()

    def _step(self) -> Tensor:
        norm = self._norm()
        torch.nn.utils.clip_grads_with_norm_(self._copies.values(), self._settings.max_norm, norm)
        if norm.isfinite():
            self._adamw.step()
            self._write_back()
        return norm

    def _step_on_device(self) -> Tensor:
        """Takes one step like `_step`, but without waiting for the norm. The fused kernel scales
        the gradients itself, and changes nothing if the norm is not finite."""
        norm = self._norm()
        scaling: Any = self._adamw
        scaling.grad_scale = ((norm + 1e-6) / self._settings.max_norm).clamp(min=1.0)
        scaling.found_inf = (~norm.isfinite()).float()
        self._adamw.step()
        self._write_back()
        return norm

    def state(self) -> dict[str, Tensor]:
        """Gathers the moments and step counts of each parameter. The result is empty before the
        first step. All ranks call this method, and rank 0 gets the result."""
        states = {name: self._adamw.state.get(copy) for name, copy in self._copies.items()}
        known = {name: state for name, state in states.items() if state}
        tensors: dict[str, Tensor] = {}
        for moment in _MOMENTS:
            tensors |= self._whole({n: state[moment] for n, state in known.items()}, f"{moment}/")
        if self._ranks.is_leader:
            for name, state in known.items():
                tensors[f"step/{name}"] = torch.as_tensor(state["step"]).reshape(1).cpu()
        return tensors

    def check(self, weights: Mapping[str, Tensor]) -> None:
        """Raises `UsageError` if `restore` could not restore these weights."""
        if set(weights) != set(self._copies):
            odd = sorted(set(weights) ^ set(self._copies))[:3]
            raise UsageError(f"the checkpoint's weights are not this model's: {', '.join(odd)}")
        for name, parameter in self._parameters.items():
            if parameter.shape != weights[name].shape:
                raise UsageError(f"the checkpoint's {name} has another shape than the model's")

    def restore(
        self,
        weights: Mapping[str, Tensor],
        state: Mapping[str, Tensor],
        steps: Mapping[str, float] | None = None,
    ) -> None:
        """Restores weights and state that `check` has accepted. All ranks call this method: rank 0
        with the tensors, the other ranks only with the step counts."""
        if steps is None:
            steps = steps_of(state)
        with torch.no_grad():
            for name, copy in self._copies.items():
                copy.copy_(self._part(weights.get(name), name))
        for name, copy in self._copies.items():
            if name in steps:
                self._adamw.state[copy] = {
                    "step": torch.tensor(steps[name], device=_step_device(copy)),
                    **{m: self._part(state.get(f"{m}/{name}"), name) for m in _MOMENTS},
                }
        self._write_back()

    def _part(self, whole: Tensor | None, name: str) -> Tensor:
        """Returns this rank's part of a tensor that rank 0 has."""
        parameter, device = self._parameters[name], self._copies[name].device
        if whole is None:
            whole = torch.empty(parameter.shape, dtype=torch.float32)
        return part_of(self._ranks.broadcast(whole.to(device)), parameter).clone()

    @torch.no_grad()
    def _write_back(self) -> None:
        parts = [(part, self._copies[name]) for name, part in self._parts.items()]
        parts = [(part, copy) for part, copy in parts if copy is not part]
        if parts:
            torch._foreach_copy_([p.detach() for p, _ in parts], [c.detach() for _, c in parts])


def steps_of(state: Mapping[str, Tensor]) -> dict[str, float]:
    """Returns the step counts from the result of `Optimizer.state`."""
    return {
        key.removeprefix("step/"): float(value)
        for key, value in state.items()
        if key.startswith("step/")
    }


def _step_device(copy: Tensor) -> torch.device:
    """Returns the device of the step count. Fused AdamW keeps the step count on the device of the
    weights, plain AdamW on the CPU."""
    return copy.device if copy.is_cuda else torch.device("cpu")
