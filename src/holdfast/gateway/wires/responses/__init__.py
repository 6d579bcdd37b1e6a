"""OpenAI's responses.

- `responses`: The wire of `/v1/responses`.
- `request`: The parameters of a request.
- `items`: The input items, checked and converted to messages.
- `output`: The response as an object: its items, and the settings that it repeats.
- `events`: The response as a stream of events, numbered from 0.
"""
