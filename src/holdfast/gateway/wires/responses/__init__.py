"""OpenAI's responses.

- `responses`: OpenAI's responses, `/v1/responses`.
- `request`: The parameters of `/v1/responses`.
- `items`: The input of `/v1/responses`: items, read strictly, and said again as messages.
- `output`: An answer as a `/v1/responses` object: its items, and the settings that it tells back.
- `events`: A response as the events of its stream, numbered from 0.
"""
