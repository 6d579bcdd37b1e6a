"""The ways by which engines take weights.

- `strategy`: the common interface: `offers(replica)`, `send(version)`, an acknowledgement each
- `in_process`: a state dict for an embedded engine in the trainer's own process
- `disk`: a folder that engine and trainer both see, and the engine's reload call
- `object_store`: Ray's object store, for engines on other nodes, which then read a folder
- `transfer`: the engine's own transfer: a collective into its workers
- `vllm_transfer`: the transfer of vLLM, and memory that vLLM shares with the trainer
- `sglang_transfer`: the transfer of SGLang
- `adapter`: a LoRA adapter under a new name for each version
"""
