"""Which sequences are decoded next, and how their tokens are drawn.

- `engine`: The engine: one thread that owns the model and decodes many generations together.
- `slots`: The slots of the cache: which are taken, and what the free ones still hold.
- `prefix_sharing`: Prompts with a common beginning are read once.
- `sampler`: Draws tokens from logits, with the same bits whatever rows are beside.
- `seeded_random`: Random numbers as pure functions of seed and position.
- `generation`: One generation: its request, and its tokens so far.
- `detokenizer`: From tokens to text, one token at a time, and the stop strings in it.
"""
