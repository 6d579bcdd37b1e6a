"""Environments over HTTP: the client, the server, and the protocol between them.

- `protocol`: the JSON bodies that both sides send.
- `environment`: the client, with `HttpEnvironment`, `EnvironmentEndpoint`, and their requests.
- `server`: `EnvironmentServer`, with its routes, tokens and limits.
- `session`: one session of the server, which does each action only once.
"""
