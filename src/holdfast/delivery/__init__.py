"""Hands each group of a run exactly once to a training loop that is not Holdfast's.

- `thread`: An event loop in its own thread, for loops that are not asynchronous; background tasks,
  such as the renewal of a trainer's lease.
- `waiting`: What a consumer is told while there is nothing to deliver.
- `settled_groups`: Waiting for groups of a run to settle: one reader serves all waiters.
- `delivery`: `Delivery`: gives the groups of a run, step by step, to a user's training loop.
- `dataset`: A `Delivery` as an `IterableDataset` of PyTorch.
- `stream`: A run that a trainer asks for rollouts, step by step; plug-ins are built on it.
- `taken_rows`: Which of the rows that an asynchronous trainer took were trained.
- `weights`: Writes a model of transformers as a version of the weights for the engine.
- `framework_arguments`: What a plug-in does with each argument of its framework.
- `frameworks`: Checks which version of a framework is installed, and which versions were tested.
"""
