"""Training on one machine turns recorded trajectories into gradients, each exactly once.

In the order in which data passes through them:

- `settings`: how a model is trained, as frozen values
- `batch`: groups of trajectories as sequences with advantages and weights
- `advantages`: how much better each trajectory was than expected
- `objective`: the function that a step minimizes, as a frozen value of five choices; its losses
- `packing`: sequences side by side in rows, common beginnings once; attention and head for rows
- `microbatches`: the rows of a step, dealt out so that every rank has about the same cost
- `ranks`: processes that train together
- `model`: the network and its optimizer
- `computation`: the calls that every rank computes
- `trainer`: computes one optimizer step from groups
- `checkpoint`: everything that a trainer needs to continue, as safetensors and JSON
- `follower`: the process of a rank that is not the first
- `run`: a training run: batches from the journal, steps, checkpoints, weights into the engine
- `report`: the report on a training, from its journal

`advantages`, `settings`, `batch`, `microbatches`, `objective.objective`, `packing.rows`,
`ranks.place` and `report` need no torch; the other modules need the extra `train`.
"""
