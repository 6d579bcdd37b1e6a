"""Turns lists into tensors on the device, without waiting for the device.

The device computes the rows of a step one after the other. If copying a list waited until the
earlier rows are computed, the device would be idle afterwards.
"""

from collections.abc import Sequence

import numpy
import torch
from torch import Tensor


def to_tensor(values: Sequence[float] | Tensor, device: torch.device) -> Tensor:
    """Returns a tensor of int64 or float32."""
    tensor = values if isinstance(values, Tensor) else _from_list(values)
    if device.type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


def _from_list(values: Sequence[float]) -> Tensor:
    """Makes a tensor with numpy, which reads a list four times as fast as torch."""
    tensor = torch.from_numpy(numpy.asarray(values))
    return tensor.float() if tensor.is_floating_point() else tensor
