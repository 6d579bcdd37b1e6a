"""A training run makes rollouts, steps, checkpoints and weights, from one command.

- `checks`: the checks before anything is sampled or written
- `folder`: the folder of a training, which one process at a time writes into
- `batches`: admits tasks and returns whole batches of settled groups; advice if no batch will ever
  be whole
- `weights`: a version of the weights as a folder, and its way into the engines
- `serving`: the engines, at addresses or embedded; an embedded one serves the newest weights
  whenever it starts
- `evaluation`: held-out tasks, as a run of its own
- `progress`: the present activity of a training
- `gap`: the gap between engine and trainer, and which of the two is wrong
- `metrics`: the numbers of each step, on the terminal, in a file and in trackers; how it ended
- `recorded`: the files of a training, as its recorded command names them
- `trackers`: Weights & Biases, trackio and TensorBoard
- `curve`: the learning curve as a picture
- `loop`: batch, step, checkpoint, commit, weights; again
- `open_training`: the run in its journal: made, found or refused, and brought to the checkpoint
- `train`: `holdfast.train`
"""
