"""OpenAI's chat completions and completions.

- `chat`: the wire of `/v1/chat/completions`, and the stream that both completions have.
- `completions`: the wire of `/v1/completions`: a bare prompt, as text or as tokens.
- `messages`: the messages and tools of chat completions, checked and converted to records.
- `parameters`: the parameters that chat and text completions share.
- `models`: the responses of `/v1/models`.
- `errors`: errors in OpenAI's format.
"""
