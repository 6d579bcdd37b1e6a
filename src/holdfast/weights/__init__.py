"""Weights on their way from the trainer into engines: all or nothing, per replica.

In the order in which a version goes through:

- `carrier`: what carries weights, by where trainer and engines compute
- `version`: a version of the weights on disk, with the logprobs by which it is recognised
- `engine_lock`: an engine has the weights of one training at a time
- `replica`: one engine's switches: pause, resume, its cache, its version, its words
- `strategies`: the ways that engines offer (disk, adapter, their own transfer, the object store),
  and the choice among them
- `collective`, `shared_memory`: one broadcast to all, or memory that both map
- `sender`: what hands weights out, in a process that can be killed
- `content`: a fingerprint of tensors, for steps that no logprob shows
- `probe`: whether an engine has the weights that the trainer has
- `records`: which weights each replica has, in the journal or in this process
- `sync`: prepare, send, check, switch; replicas that failed or come back
- `vllm_worker`: what runs inside vLLM's worker processes, if it is started with it

Knows nothing of trainers: a version is a folder. Nothing here waits without a deadline.
"""
