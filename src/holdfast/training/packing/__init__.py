"""Sequences side by side, common beginnings once.

- `rows`: sequences packed into rows of segments
- `attention`: each segment attends to its path back to the root
- `head`: logprobs and entropies of trained tokens, in chunks
"""
