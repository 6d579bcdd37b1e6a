"""Training on one machine: recorded trajectories become gradients, each exactly once.

In the order in which data goes through:

- `settings`: how a model is trained, as frozen values
- `batch`: groups of trajectories as sequences with advantages and weights
- `advantages`: how much better a trajectory was than expected
- `objective`: what a step minimizes, as a frozen value of five choices; its losses
- `packing`: sequences side by side in rows, common beginnings once; attention and head for them
- `microbatches`: rows of a step, dealt out to ranks of about the same cost
- `ranks`: processes that train together
- `model`: the network and its optimizer
- `computation`: what every rank computes
- `trainer`: one optimizer step from groups
- `checkpoint`: everything that is needed to go on, as safetensors and JSON
- `follower`: the process of a rank that is not the first
- `run`: a training run: batches from the journal, steps, checkpoints, weights into the engine
- `report`: what became of a training, from its journal

`advantages`, `settings`, `batch`, `microbatches`, `objective.objective`, `packing.rows`,
`ranks.place` and `report` need no torch; the rest needs the extra `train`.
"""
