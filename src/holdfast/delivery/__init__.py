"""Recorded groups to a training loop that is not ours, each exactly once.

- `thread`: An event loop in a thread of its own, for loops that are not asynchronous; work beside
  a trainer's own, such as the renewal of its lease.
- `waiting`: What a consumer is told where there is nothing to deliver.
- `settled_groups`: Waiting for groups of a run to settle: one reader for all who wait.
- `delivery`: `Delivery`: the groups of a run, step by step, for a loop of one's own.
- `dataset`: The same as an `IterableDataset` of PyTorch.
- `stream`: A run that a trainer asks for rollouts, step by step: what plug-ins stand on.
- `taken_rows`: Rows on their way through an asynchronous trainer: which of them were trained.
- `weights`: A model of transformers as a version of the weights, on its way into the engine.
- `framework_arguments`: What a plug-in does with each argument of its framework.
- `frameworks`: Which version of a framework is here, and which ones were tested.
"""
