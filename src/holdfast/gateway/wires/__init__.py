"""The providers' wires: from bytes to a `GenerationRequest`, and from an `Answer` to bytes.

- `all`: every wire that the gateway speaks, by the path that its clients post to.
- `openai`: OpenAI's chat completions and completions.
- `responses`: OpenAI's responses.
- `anthropic`: Anthropic's messages.
- `altering`: the fields that the requests of all wires share.
- `sse`: server-sent events as bytes, texts in pieces, and the text that a stream has sent.
"""
