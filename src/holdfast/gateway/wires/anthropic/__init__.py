"""Anthropic's messages.

- `messages`: Anthropic's messages: `/v1/messages`, `/v1/messages/count_tokens` and its
  `/v1/models`.
- `request`: The shape of a request to `/v1/messages`: what is accepted, what is ignored, what is
  refused.
- `blocks`: Blocks: Anthropic's content, from and to messages.
- `tools`: Tools: from Anthropic's definitions to the schemas that templates render.
- `stream`: Anthropic's answer: a message, as one object or as the events of a stream.
- `errors`: Errors as Anthropic says them, and what is wrong with a request as its errors name it.
"""
