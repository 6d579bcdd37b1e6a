"""OpenAI's chat completions and completions.

- `chat`: OpenAI's chat completions, `/v1/chat/completions`.
- `completions`: OpenAI's legacy completions, `/v1/completions`: a bare prompt, as text or as
  tokens.
- `messages`: The messages and tools of chat completions, read strictly, and said again as records
  have them.
- `parameters`: The parameters that OpenAI's chat and text completions share.
- `formats`: Structured outputs and reasoning effort, as OpenAI's requests ask for them.
- `stream`: The stream of OpenAI's completions, those of chats and the legacy ones: chunks, then
  `[DONE]`.
- `models`: What `/v1/models` tells, of all models or of one.
- `errors`: Errors in OpenAI's shape, and what is wrong with a body said in OpenAI's words.
"""
