"""Gets float32 results from a model whose weights have fewer digits, without a second copy of it.

Each function that the model calls gets float32 copies of its arguments, which exist only while the
function runs. So the result is the same as from a float32 model with the same weights, but needs
hardly more memory.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

_SHORT = (torch.bfloat16, torch.float16)


class _InFloat32(TorchFunctionMode):
    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Any,
        arguments: tuple[Any, ...] = (),
        named: Mapping[str, Any] | None = None,
    ) -> Any:
        arguments, named = tree_map(_lengthened, (arguments, dict(named or {})))
        return function(*arguments, **named)


def _lengthened(value: Any) -> Any:
    """Converts a floating-point tensor or data type to float32 if it has fewer bits. Returns every
    other value unchanged."""
    if isinstance(value, Tensor):
        return value.float() if value.dtype in _SHORT else value
    return torch.float32 if value in _SHORT else value


@contextmanager
def in_float32() -> Iterator[None]:
    """Computes in float32 inside the block, whatever types the weights have. Compiled layers run
    uncompiled. Only for forward passes without gradients."""
    with torch.no_grad(), torch.compiler.set_stance("force_eager"), _InFloat32():
        yield
