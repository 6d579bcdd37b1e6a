"""The providers' wires: from bytes to a `GenerationRequest`, and from an `Answer` to bytes.

- `all`: Every wire that the gateway speaks, by the path that its clients post to.
- `openai`: OpenAI's chat completions and completions.
- `responses`: OpenAI's responses.
- `anthropic`: Anthropic's messages.
- `altering`: The parameters that engines know and providers do not.
- `tool_choices`: The tool that a request forces.
- `images`: The image addresses that an engine may get.
- `sse`: Server-sent events as bytes, texts in pieces, and the text that a stream has sent.
"""
