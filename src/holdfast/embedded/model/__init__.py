"""The model: loading it, its passes, and the proof that batches change nothing.

- `load`: A model folder as Hugging Face writes it, loaded: config, tokenizer, safetensors.
- `files`: Which files a model folder must have.
- `weights`: New weights for a running model: checked as a whole before the first number is changed.
- `attention`: Attention whose bits depend on a query's own position and its own cache, and on
  nothing else.
- `kv_cache`: Keys and values of every slot, in blocks.
- `batched`: Forward passes of fixed shapes.
- `sequential`: Passes for a model whose rows cannot be kept apart: each sequence is run by itself.
- `verify_batched`: Proof at start-up, on this machine, with these weights, that the engine may
  promise what it does.
- `verify_sequential`: Proof at start-up that a model which is run alone gives a sequence's tokens
  and nothing else.
"""
