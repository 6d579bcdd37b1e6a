"""Which sequences are decoded next, and how their tokens are drawn.

- `engine`: The engine: one thread that owns the model and decodes many generations together.
- `slots`: The slots of the cache, what they hold, and who reads a common beginning for others.
- `sampler`: Draws tokens from logits, with the same bits whatever rows are beside.
- `generation`: One generation: its request, and its tokens so far.
- `detokenizer`: From tokens to text, one token at a time, and the stop strings in it.
"""
