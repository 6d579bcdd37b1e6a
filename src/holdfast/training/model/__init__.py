"""What is trained, and by what.

- `sharding`: weights that are spread over ranks
- `network`: a Hugging Face causal LM, in full or with a LoRA adapter
- `optimizer`: AdamW and its schedule, over float32 copies
"""
