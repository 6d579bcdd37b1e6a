"""What a step minimizes.

- `objective`: the frozen value, its five choices and the presets
- `losses`: an objective as numbers, over flat tensors
- `diagnostics`: what a step's tokens say about its health
"""
