"""Anthropic's messages.

- `messages`: The wire of `/v1/messages`, `/v1/messages/count_tokens` and `/v1/models`.
- `request`: The fields of a request: accepted, ignored or rejected.
- `blocks`: Content blocks, from and to messages.
- `tools`: Tool definitions as the schemas that templates render.
- `stream`: The response, as one object or as a stream of events.
- `errors`: Errors in Anthropic's format.
"""
