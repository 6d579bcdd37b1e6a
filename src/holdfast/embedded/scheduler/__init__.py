"""Which sequences are decoded next, and how their tokens are drawn.

- `engine`: The engine: one thread that owns the model and decodes many generations together.
- `generation`: One generation: what was asked, and what has come of it so far.
- `sampler`: Drawing tokens from logits, row by row, to the last bit the same whatever rows are
  beside it.
- `seeded_random`: Random numbers as pure functions: the one for a token depends on its seed and its
  place alone.
- `prefix_sharing`: Prompts that begin alike are read once, by the first; the others copy its keys
  and values.
- `slots`: Who has which place in the cache, and what the free places still hold.
- `detokenizer`: From tokens to text, one token at a time, and the stop strings in it.
"""
