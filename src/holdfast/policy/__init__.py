"""Token-in token-out clients for inference engines.

Knows prompts as ids, sampling, retries and the state of an endpoint. Never knows rollouts, tasks
or the journal, and never turns sampled text back into ids.

- `policy`: Policy: whatever samples tokens from a prompt of tokens.
- `rendering`: From messages to tokens, and from sampled tokens to a message.
- `client`: Asking an engine: replicas, retries, outages, and the validation of what it answers.
- `dialects`: The dialects that Holdfast speaks, by name.
- `retry`: Retrying one HTTP call: how often, how long, and from which shared budget.
- `off_loop`: Work whose time grows with a prompt: on the event loop while it is short, in a thread
  when not.
"""
