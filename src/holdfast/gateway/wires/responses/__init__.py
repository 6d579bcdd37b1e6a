"""OpenAI's responses.

- `responses`: the wire of `/v1/responses`, and the parameters of its requests.
- `items`: the input, item by item, as messages.
- `output`: an answer as a response object or as a stream of events.
"""
