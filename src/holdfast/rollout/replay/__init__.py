"""The log of one attempt: which step is replayed, and which one runs.

- `run_context`: RunContext: the objects that all attempts of a run share.
- `current_code`: CurrentCode: the trajectory, attempt and step for which the present code runs.
  StepScope: user code within a step.
- `session`: Session: one attempt at one trajectory: its log, its state and its episodes.
- `unawaited`: Finds steps that were called and never awaited, which is an error.
- `divergence`: Divergence in words: the record, the rollout's new request, and where they differ.
- `speaker`: Speaker: the policy and the renderer of a turn.
- `budget`: Budgets: how much one trajectory may use, in turns, tokens and time.
- `reply`: The results of steps: Reply and ToolReply.
- `prompt`: The prompt of the next turn: the kept part of the token stream, and the tokens after it.
- `generate_step`: One generation: its request to the policy, its drafts, and its record.
"""
