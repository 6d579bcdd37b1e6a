"""Packing puts sequences side by side in rows, with common beginnings only once.

- `rows`: sequences packed into rows of segments
- `tensors`: lists as tensors on the device, without waiting for it
- `attention`: each segment attends to its path back to the root
- `head`: logprobs and entropies of trained tokens, in chunks
- `kernels`: the head's work between its products, for GPUs
"""
