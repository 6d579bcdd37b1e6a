"""Loads the model, runs its passes, and proves that batches change no results.

- `load`: Loads a model folder as Hugging Face writes it: config, tokenizer, safetensors.
- `files`: The files that a model folder must have.
- `weights`: Gives a running model new weights. All are checked before the first number changes.
- `attention`: The cache of keys and values, and attention with bits that depend only on a query's
  own position and cache.
- `batched`: Forward passes of fixed shapes.
- `sequential`: Passes for a model that cannot share a batch.
- `verify_batched`: Verifies at start-up that batches change no bits on this machine.
- `verify_sequential`: Verifies at start-up a model that runs one sequence at a time.
"""
