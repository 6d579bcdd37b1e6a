"""Weights on their way from the trainer into engines: all or nothing, per replica.

In the order in which a version passes through them:

- `carrier`: the carriers of weights, by where trainer and engines compute
- `version`: a version of the weights on disk, with the logprobs that identify it
- `engine_lock`: an engine has the weights of one training at a time
- `replica`: one engine's switches: pause, resume, prefix cache, version and errors
- `strategies`: the ways that engines offer (disk, adapter, their own transfer, the object store),
  and the choice among them
- `collective`, `shared_memory`: a broadcast to all receivers, or memory that both sides map
- `sender`: the process that sends weights, which can be killed
- `content`: a fingerprint of tensors, for steps that do not show in any logprob
- `probe`: checks whether an engine has the trainer's weights
- `records`: which weights each replica has, in the journal or in this process
- `sync`: prepares, sends, checks and switches; replicas that failed or come back
- `vllm_worker`: the code that runs inside vLLM's worker processes, if vLLM is started with it

The package does not know trainers: it takes a version as a folder. Every wait has a deadline.
"""
