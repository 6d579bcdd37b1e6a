"""Environments over HTTP: the client, the server, and the protocol between them.

- `protocol`: the JSON bodies that both sides send.
- `environment`: `HttpEnvironment`, the client, and `EnvironmentEndpoint`.
- `connection`: one client's requests, their retries and their errors.
- `server`: `EnvironmentServer`: routes, tokens, limits.
- `session`: one session of the server: one environment, each action once.
"""
