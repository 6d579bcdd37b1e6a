"""Training on one machine: recorded trajectories become gradients, each exactly once.

In the order in which data goes through:

- `settings`: how a model is trained, as frozen values
- `batch`: groups of trajectories as sequences with advantages and weights
- `advantages`: how much better a trajectory was than expected
- `objective`: what a step minimizes, as a frozen value of five choices; its losses
- `packing`: sequences side by side in rows, common beginnings once; attention and head for them
- `model`: the network and its optimizer
- `trainer`: one optimizer step from groups
- `checkpoint`: everything that is needed to go on, as safetensors and JSON
- `run`: a training run: batches from the journal, steps, checkpoints, weights into the engine

`advantages`, `settings`, `batch`, `objective.objective` and `packing.rows` need no torch; the rest
needs the extra `train`.
"""
