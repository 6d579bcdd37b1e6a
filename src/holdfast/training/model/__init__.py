"""The model that is trained, and its optimizer.

- `sharding`: weights that are spread over ranks
- `memory`: how much memory is free
- `plain`: the model's own forward pass, which judges all others
- `exact`: float32 results from weights with fewer digits
- `trial`: sequences with exact logprobs, which show which ways to compute are right
- `network`: a Hugging Face causal LM, in full or with a LoRA adapter
- `optimizer`: AdamW and its schedule, over float32 copies
"""
