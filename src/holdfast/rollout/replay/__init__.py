"""The log of one attempt, which decides whether a step is replayed or runs.

- `run_context`: RunContext: the objects that all attempts of a run share.
- `current_code`: CurrentCode: the trajectory, attempt and step for which the present code runs.
  StepScope: user code within a step.
- `session`: Session: one attempt at one trajectory, with its log, its state and its episodes.
- `unawaited`: finds steps that were called and never awaited, which is an error.
- `divergence`: describes in words how a rollout's request differs from the record.
- `speaker`: Speaker: the policy and the renderer of a turn.
- `budget`: limits of a trajectory in turns, tokens and time, and what it has spent.
- `reply`: Reply and ToolReply: the results of steps.
- `prompt`: the prompt of the next turn, made of the tokens that are kept and the tokens after them.
- `generate_step`: one generation, with its request to the policy, its drafts, and its record.
"""
