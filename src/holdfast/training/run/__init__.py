"""A training run: rollouts, steps, checkpoints and weights, from one command.

- `checks`: what is refused before anything is sampled or written
- `folder`: where everything of a training is kept, by one process at a time
- `batches`: tasks are admitted, and whole batches of settled groups come back; what is advised
  where none will
- `weights`: a version of the weights as a folder, and its way into the engine
- `serving`: the engines, at addresses or embedded; the latter serves the weights in force whenever
  it starts
- `evaluation`: held-out tasks, as a run of its own
- `progress`: what a training is doing right now
- `gap`: how far engine and trainer are apart, and which of them is wrong
- `metrics`: the numbers of each step, on the terminal, in a file and in trackers; how it ended
- `trackers`: Weights & Biases, trackio and TensorBoard
- `curve`: the learning curve as a picture
- `loop`: batch, step, checkpoint, commit, weights; again
- `open_training`: the run in its journal: made, found again, or refused; brought to the checkpoint
- `train`: `holdfast.train`
"""
