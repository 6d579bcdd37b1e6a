"""Anthropic's messages.

- `messages`: the wire of `/v1/messages`: responses, streams, models, counts of tokens.
- `request`: the fields and tools of a request: accepted, ignored or rejected.
- `blocks`: content blocks, from and to messages.
- `errors`: errors in Anthropic's format.
"""
