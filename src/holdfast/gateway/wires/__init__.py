"""The providers' wires, one module each: from bytes to an `Ask`, and from an `Answer` to bytes.

- `all`: Every wire that the gateway speaks, by the path that its clients post to.
- `openai`: OpenAI's chat completions and completions.
- `responses`: OpenAI's responses.
- `anthropic`: Anthropic's messages.
- `tool_choices`: Which tool a request wants called, in any provider's words.
- `images`: Images in requests: which addresses an engine may be given.
- `spoken`: Spoken: what a stream has told of one choice, and what is left to tell when it ends.
- `sse`: Server-sent events as bytes, and texts cut into the pieces that a stream tells them in.
"""
