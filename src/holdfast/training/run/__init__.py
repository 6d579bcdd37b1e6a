"""A training run: rollouts, steps, checkpoints and weights, from one command.

- `folder`: where everything of a training is kept, by one process at a time
- `batches`: tasks are admitted, and whole batches of settled groups come back
- `weights`: a version of the weights as a folder, and its way into the engine
- `serving`: the embedded engine, which serves the weights in force whenever it starts
- `evaluation`: held-out tasks, as a run of its own
- `metrics`: the numbers of each step, on the terminal, in files and in trackers
- `curve`: the learning curve as a picture
- `loop`: batch, step, checkpoint, commit, weights; again
- `train`: `holdfast.train`
"""
