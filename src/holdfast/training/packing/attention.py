"""Computes attention over packed rows. Each segment sees itself and its path back to the root.

The attention is registered with transformers under `NAME`. The layout of the row is passed to the
model's call as the keyword argument `packed_layout`. transformers would build a dense mask for
packed positions, which costs more than packing saves. Here, no product is computed that the result
does not need, except in the triangle above the diagonal of each segment.
"""

from inspect import signature
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention.varlen import varlen_attn

from holdfast.training.packing.rows import PackedRow
from holdfast.training.packing.tensors import to_tensor

NAME = "holdfast_packed"
_UNKNOWN_ARGUMENTS = ("softcap", "s_aux", "position_bias", "alibi")
_ASKS_FOR_GROUPS = "enable_gqa" in signature(varlen_attn).parameters
"""Whether `varlen_attn` needs `enable_gqa` for grouped heads. Older versions of torch accept
grouped heads without this argument."""


class PackedLayout:
    """The places of each segment's queries and keys in a row, made once for all layers."""

    def __init__(self, row: PackedRow, device: torch.device):
        self.queries = [slice(segment.start, segment.end) for segment in row.segments]
        self.paths = [row.path(number) for number in range(len(row.segments))]
        self.keys = [[self.queries[part] for part in path] for path in self.paths]
        self.is_shared = any(len(path) > 1 for path in self.paths)
        self._masks: dict[tuple[int, int | None], Tensor] = {}
        self._device = device
        lengths = [sum(part.stop - part.start for part in keys) for keys in self.keys]
        widths = [part.stop - part.start for part in self.queries]
        self.key_lengths = lengths
        # Upper bounds suffice. Powers of two keep the number of compiled kernels small.
        self.max_query, self.max_key = _power_of_two(max(widths)), _power_of_two(max(lengths))
        if device.type != "cpu":
            self.query_ends = _ends(widths, device)
            self.key_ends = _ends(lengths, device)
            order = [i for keys in self.keys for part in keys for i in range(part.start, part.stop)]
            self.key_order = to_tensor(order, device) if self.is_shared else None

    def mask(self, segment: int, window: int | None) -> Tensor | None:
        """Returns the mask [queries, keys] of one segment, or None if the segment needs only plain
        causal attention."""
        length = self.key_lengths[segment]
        if len(self.keys[segment]) == 1 and (window is None or window >= length):
            return None
        if (segment, window) not in self._masks:
            width = self.queries[segment].stop - self.queries[segment].start
            own = torch.arange(length - width, length, device=self._device)[:, None]
            others = torch.arange(length, device=self._device)[None]
            seen = others <= own
            self._masks[segment, window] = (
                seen if window is None else seen & (others > own - window)
            )
        return self._masks[segment, window]


def register() -> None:
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, attend)


def attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    packed_layout: PackedLayout | None = None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    dropout: float = 0.0,
    **others: Any,
) -> tuple[Tensor, None]:
    """Computes attention as transformers calls it: query [1, heads, tokens, size], result [1,
    tokens, heads, size].

    Raises `NotImplementedError` for models that need features that this attention does not have.
    """
    wanted = [name for name in _UNKNOWN_ARGUMENTS if others.get(name) is not None]
    if wanted or dropout:
        raise NotImplementedError(f"packed attention has no {(*wanted, 'dropout')[0]}")
    if packed_layout is None:
        raise NotImplementedError("its layers do not pass on which tokens belong together")
    if query.device.type == "cpu" or query.dtype == torch.float32:  # varlen_attn has no float32.
        return _by_segment(query, key, value, packed_layout, scaling, sliding_window), None
    return _varlen(query, key, value, packed_layout, scaling, sliding_window), None


def _by_segment(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    layout: PackedLayout,
    scaling: float | None,
    window: int | None,
) -> Tensor:
    """Computes attention one segment after the other. Splits the row only once, because the
    gradient of each slice would be as long as the row."""
    grouped = query.shape[1] != key.shape[1]
    widths = [own.stop - own.start for own in layout.queries]
    queries, keys, values = (
        states.split(widths, dim=2)  # type: ignore[no-untyped-call]
        for states in (query, key, value)
    )
    results = []
    for segment, path in enumerate(layout.paths):
        mask = layout.mask(segment, window)
        results.append(
            functional.scaled_dot_product_attention(
                queries[segment],
                _along(keys, path),
                _along(values, path),
                attn_mask=mask,
                is_causal=mask is None,
                scale=scaling,
                enable_gqa=grouped,
            )
        )
    return torch.cat(results, dim=2).transpose(1, 2).contiguous()


def _along(parts: tuple[Tensor, ...], path: list[int]) -> Tensor:
    if len(path) == 1:
        return parts[path[0]]
    return torch.cat([parts[number] for number in path], dim=2)


def _varlen(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    layout: PackedLayout,
    scaling: float | None,
    window: int | None,
) -> Tensor:
    query, key, value = (states[0].transpose(0, 1) for states in (query, key, value))
    if layout.key_order is not None:
        key, value = (_gather(states, layout.key_order) for states in (key, value))
    is_grouped = query.shape[1] != key.shape[1]
    grouped: dict[str, Any] = {"enable_gqa": True} if is_grouped and _ASKS_FOR_GROUPS else {}
    result = varlen_attn(
        query.contiguous(),
        key.contiguous(),
        value.contiguous(),
        layout.query_ends,
        layout.key_ends,
        layout.max_query,
        layout.max_key,
        scale=scaling,
        window_size=(-1 if window is None else window - 1, 0),
        **grouped,
    )
    assert isinstance(result, Tensor)
    return result[None]


def _gather(states: Tensor, order: Tensor) -> Tensor:
    """Gathers states in the given order. The backward pass adds up the gradients of a shared token
    in float32."""
    return states.float().index_select(0, order).to(states.dtype)


def _power_of_two(size: int) -> int:
    return 1 << (size - 1).bit_length()


def _ends(lengths: list[int], device: torch.device) -> Tensor:
    """Returns the offset at which each sequence begins and the offset at which the last sequence
    ends, as `varlen_attn` needs them."""
    return to_tensor([0, *accumulate(lengths)], device).int()
