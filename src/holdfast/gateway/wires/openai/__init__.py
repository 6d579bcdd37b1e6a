"""OpenAI's chat completions and completions.

- `chat`: The wire of `/v1/chat/completions`.
- `completions`: The wire of `/v1/completions`: a bare prompt, as text or as tokens.
- `messages`: The messages and tools of chat completions, checked and converted to records.
- `parameters`: The parameters that chat and text completions share.
- `formats`: Structured outputs and reasoning effort.
- `stream`: The stream of both completions: chunks, then `[DONE]`.
- `models`: The responses of `/v1/models`.
- `errors`: Errors in OpenAI's format.
"""
