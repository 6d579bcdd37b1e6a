"""Token-in token-out clients for inference engines.

Knows prompts as ids, sampling, retries and the state of an endpoint. Never knows rollouts, tasks
or the journal, and never turns text back into ids.
"""
