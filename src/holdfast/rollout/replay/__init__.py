"""The log of one attempt: which step is replayed, and which one runs.

- `run_context`: RunContext: what all attempts of a run share.
- `current_code`: CurrentCode: for which trajectory, attempt and step the code runs that asks;
  StepScope: user code within a step.
- `session`: Session: one attempt at one trajectory: its log, its state and its episodes.
- `unawaited`: Steps that were called: one that nobody awaits is an error at the rollout's end.
- `divergence`: Divergence in words: what is recorded, what the rollout asks for now, and where they
  part.
- `speaker`: Speaker: who speaks in a turn: a policy, and the renderer that turns messages into its
  tokens.
- `budget`: Budgets: how much one trajectory may use, in turns, tokens and time.
- `reply`: The results of steps: Reply and ToolReply.
- `prompt`: The prompt of the next turn: what is kept of the token stream, and what comes after it.
- `generate_step`: One generation: what is asked of the policy, kept on the way, and recorded at the
  end.
"""
