"""The model: loading it, its passes, and the proof that batches change nothing.

- `load`: A model folder as Hugging Face writes it, loaded: config, tokenizer, safetensors.
- `files`: Which files a model folder must have.
- `weights`: New weights for a running model: checked as a whole before the first number is changed.
- `attention`: The cache of keys and values, and attention with bits that depend on a query's own
  position and cache alone.
- `batched`: Forward passes of fixed shapes.
- `sequential`: Passes for a model that cannot share a batch.
- `verify_batched`: Verifies at start-up that batches change no bits, on this machine.
- `verify_sequential`: The same for a model that is run one sequence at a time.
"""
