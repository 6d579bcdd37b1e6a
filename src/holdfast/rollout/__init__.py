"""How one trajectory is made: the durable context, tools, and processors.

Knows the journal's records and a policy. Never knows how many trajectories there are, never
retries, and never decides what a failure means.

- `processors`: RolloutProcessor and the rollouts that most agents are.
- `context`: Rollout, the durable context `t`: what a rollout awaits on it is journaled.
- `validate`: the arguments of its steps, checked before anything is sampled or recorded.
- `replay`: the log of one attempt: which step is replayed, and which one runs.
- `tool_step`: one tool call, durable before and after it runs.
- `tools`: functions with a schema, a contract and a deadline.
- `episodes`: environments, and how one comes back after a kill.
- `processes`: user code in processes of its own.
- `threads`: user code in threads.
- `code`: fingerprints of user code.
"""
