"""The objective that a step minimizes.

- `objective`: the frozen value, its five choices and the presets
- `losses`: an objective as numbers, over flat tensors
- `diagnostics`: numbers about the health of a step, from its tokens
"""
