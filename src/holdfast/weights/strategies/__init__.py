"""The ways by which engines take weights.

- `strategy`: what all of them have: `offers(replica)`, `send(version)`, an acknowledgement each
- `in_process`: the embedded engine of this very process, by its state dict
- `disk`: a folder that engine and trainer both see, and the engine's reload call
- `object_store`: Ray's object store, for engines on other nodes, and then as from disk
- `transfer`: the engine's own: a collective into its workers
- `vllm_transfer`: as vLLM calls it, and memory that it shares with the trainer
- `sglang_transfer`: as SGLang calls it
- `adapter`: a LoRA adapter under a new name for each version
"""
