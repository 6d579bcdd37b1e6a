"""Token-in token-out clients for inference engines.

This package knows prompts as ids, sampling, retries and the state of an endpoint. It does not know
rollouts, tasks or the journal, and never turns sampled text back into ids.

- `policy`: Policy, request and completion: a prompt of tokens in, sampled tokens out.
- `providers`: Hosted engines, named by the first word of a model's name.
- `rendering`: From messages to tokens, and from sampled tokens to a message.
- `client`: The client of inference engines: replicas, retries, outages, validation.
- `dialects`: The HTTP interfaces of the engines, by name.
- `hold`: Makes calls and admission wait while weights change.
- `retry`: Retries of one HTTP call: their number, and the delay between them.
"""
