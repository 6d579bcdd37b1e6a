"""Chooses the sequences of each pass, and draws their tokens.

- `engine`: The engine: one thread that owns the model and decodes many generations together.
- `slots`: The slots of the cache, their contents, and the sharing of common beginnings.
- `sampler`: Draws tokens from logits. A row's bits do not depend on the other rows.
- `generation`: One generation: its request, and its tokens so far.
- `detokenizer`: From tokens to text, one token at a time, and the stop strings in it.
"""
