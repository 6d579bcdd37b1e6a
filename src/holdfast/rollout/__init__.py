"""Makes one trajectory, with the durable context, tools, and processors.

This package knows the journal's records and a policy. It does not know how many trajectories there
are, never retries, and never decides what a failure means.

- `processors`: RolloutProcessor, and the rollouts that fit most agents.
- `context`: Rollout, the durable context `t`. Each step that a rollout awaits on it is journaled.
- `validate`: checks the arguments of steps before anything is sampled or recorded.
- `replay`: the log of one attempt, which decides whether a step is replayed or runs.
- `tool_step`: one tool call. Its intent is durable before it runs, and its result afterwards.
- `tools`: functions with a schema, a contract and a deadline.
- `episodes`: environments, and how an environment is restored after a kill.
- `processes`: user code in separate processes.
- `threads`: user code in threads.
- `code`: fingerprints of user code.
"""
