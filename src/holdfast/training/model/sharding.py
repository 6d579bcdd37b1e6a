"""Divides a network's weights among ranks, so that each rank has a part of every layer (FSDP2).

A layer is complete on each rank while it is computed. Gradients are added up over the ranks, not
averaged, because the weights of tokens already refer to the whole step.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from holdfast.training.ranks.group import RankGroup

Result = TypeVar("Result")


class ShardedCalls(nn.Module):
    """Calls functions that use a module while its weights are gathered. All ranks must make the
    same calls in the same order."""

    def __init__(self, module: nn.Module, layers: Sequence[nn.Module], ranks: RankGroup):
        super().__init__()
        self._module = module
        mesh = init_device_mesh(ranks.device_type, (ranks.size,))
        # In bfloat16, a sum over ranks would lose digits that the float32 copies keep.
        precision = MixedPrecisionPolicy(reduce_dtype=torch.float32)
        options: dict[str, Any] = {"mesh": mesh, "mp_policy": precision}
        # Reshard the outermost part, too. Otherwise its gathered weights would survive an update.
        for part in (*reversed(layers), self):
            fully_shard(part, reshard_after_forward=True, **options)
        for part in self.modules():
            if isinstance(part, FSDPModule):
                part.set_force_sum_reduction_for_comms(True)
                part.set_gradient_divide_factor(1.0)
                # An expert may have tokens on one rank and none on another.
                part.set_reduce_scatter_unused_params(True)

    def call(self, function: Callable[[], Result]) -> Result:
        """Calls the function. Its result must not be a view of another tensor. If the function
        raises, it must raise on all ranks; the next call then works as if this call had not
        happened."""
        try:
            result: Result = self(function)
        except Exception:
            cast("FSDPModule", self).reset_iter_state()
            raise
        return result

    def forward(self, function: Callable[[], Result]) -> Result:
        return function()


def local_part(parameter: Tensor) -> Tensor:
    """Returns this rank's part of a parameter, in the same memory. A parameter that is not sharded
    is returned whole."""
    if not isinstance(parameter, DTensor):
        return parameter
    local: Tensor = cast("DTensor", parameter.detach()).to_local()
    return local


def gather(local: Tensor, parameter: Tensor) -> Tensor:
    """Joins the ranks' parts into a tensor of `parameter`'s shape. All ranks call it."""
    if not isinstance(parameter, DTensor):
        return local
    distributed = DTensor.from_local(
        local,
        parameter.device_mesh,
        parameter.placements,
        run_check=False,
        shape=parameter.shape,
        stride=parameter.stride(),
    )
    return distributed.full_tensor()


def part_of(whole: Tensor, parameter: Tensor) -> Tensor:
    """Returns this rank's part of a tensor that every rank has whole."""
    if not isinstance(parameter, DTensor):
        return whole
    mesh, placements = parameter.device_mesh, parameter.placements
    local: Tensor = distribute_tensor(whole, mesh, placements, src_data_rank=None).to_local()
    return local
