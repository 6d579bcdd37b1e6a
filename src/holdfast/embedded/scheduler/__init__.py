"""Chooses the sequences of each pass, and draws their tokens.

- `engine`: One thread that owns the model and decodes many generations together.
- `slots`: The slots of the cache, their contents, and the sharing of common beginnings.
- `sampler`: Draws tokens from logits. A row's bits do not depend on the other rows.
- `generation`: A generation, with its request and its tokens so far.
- `detokenizer`: Turns tokens into text, one token at a time, and finds the stop strings in it.
"""
